//! A link between two nodes that can be cut: a relay of TCP connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Between two looks at a link that is cut.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    cut: AtomicBool,
    /// Rises with each cut: connections from before it do not go on.
    cuts: AtomicU64,
    /// Reads of bytes that were not passed on since the link was cut.
    swallowed: AtomicU64,
}

/// Relays what is sent to it to one address, while the link is not cut.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    state: Arc<State>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let to = Arc::new(Mutex::new(to));
        let (shared, target) = (Arc::clone(&state), Arc::clone(&to));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (shared, to) = (Arc::clone(&shared), *target.lock().unwrap());
                thread::spawn(move || connect(client, to, &shared));
            }
        });
        Relay { address, to, state }
    }

    /// From now on, connections go to another address.
    pub(crate) fn lead_to(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
    }

    /// From now on, bytes vanish; nobody is told.
    pub(crate) fn cut(&self) {
        self.state.swallowed.store(0, Ordering::SeqCst);
        self.state.cuts.fetch_add(1, Ordering::SeqCst);
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Relays again. Connections in which bytes have vanished are closed.
    pub(crate) fn mend(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
    }

    /// Whether something was sent that did not arrive since the link was cut.
    pub(crate) fn has_swallowed(&self) -> bool {
        self.state.swallowed.load(Ordering::SeqCst) > 0
    }
}

fn connect(client: TcpStream, to: SocketAddr, state: &Arc<State>) {
    let cuts = state.cuts.load(Ordering::SeqCst);
    if state.cut.load(Ordering::SeqCst) {
        swallow(client, state);
        return;
    }
    let Ok(server) = TcpStream::connect(to) else { return };
    let (Ok(back_from), Ok(back_to)) = (server.try_clone(), client.try_clone()) else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let other = Arc::clone(state);
    thread::spawn(move || pass(back_from, back_to, &other, cuts));
    pass(client, server, state, cuts);
}

/// As a network does: nothing arrives, and nothing comes back. Ends when the sender gives up, or
/// with the cut.
fn swallow(mut from: TcpStream, state: &State) {
    state.swallowed.fetch_add(1, Ordering::SeqCst);
    let _ = from.set_read_timeout(Some(PAUSE));
    let mut bytes = [0; 16 << 10];
    while state.cut.load(Ordering::SeqCst) {
        match from.read(&mut bytes) {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(0) | Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}

/// Passes bytes on until a side closes, or until the end of a cut.
fn pass(mut from: TcpStream, mut to: TcpStream, state: &State, cuts: u64) {
    let mut bytes = [0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if state.cuts.load(Ordering::SeqCst) != cuts {
            // Open until then: the receiver is not told either.
            swallow(from, state);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
