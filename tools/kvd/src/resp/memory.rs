//! [`Memory`]: what long commands and long replies of all connections share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Up to this many bytes each, commands and replies use none of the shared memory.
pub(super) const FREE: usize = 16 * 1024;

const UNIT: usize = 1024;

/// Shared memory. Clones share it.
#[derive(Clone)]
pub(super) struct Memory {
    units: Arc<Semaphore>,
}

/// A part of the shared memory, given back when dropped.
#[derive(Debug, Default)]
pub(super) struct Share {
    permit: Option<OwnedSemaphorePermit>,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Memory {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Memory { units: Arc::new(Semaphore::new(units)) }
    }

    /// Enlarges a share to `bytes`, waiting for others to give memory back.
    pub(super) async fn enlarge(&self, share: &mut Share, bytes: usize) {
        let lacking = lacking(share, bytes);
        if lacking > 0
            && let Ok(permit) = Arc::clone(&self.units).acquire_many_owned(lacking).await
        {
            share.add(permit);
        }
    }

    /// Enlarges a share to `bytes` if there is room now.
    #[must_use]
    pub(super) fn try_enlarge(&self, share: &mut Share, bytes: usize) -> bool {
        match lacking(share, bytes) {
            0 => true,
            lacking => self.try_take(share, lacking),
        }
    }

    /// Adds `bytes` to a share if there is room now.
    #[must_use]
    pub(super) fn try_add(&self, share: &mut Share, bytes: usize) -> bool {
        bytes <= FREE || self.try_take(share, units(bytes))
    }

    fn try_take(&self, share: &mut Share, units: u32) -> bool {
        match Arc::clone(&self.units).try_acquire_many_owned(units) {
            Ok(permit) => {
                share.add(permit);
                true
            }
            Err(_) => false,
        }
    }
}

impl Share {
    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(own) => own.merge(permit),
            None => self.permit = Some(permit),
        }
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        self.permit = None;
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

fn lacking(share: &Share, bytes: usize) -> u32 {
    let has = share.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let wants = if bytes <= FREE { 0 } else { units(bytes) };
    wants.saturating_sub(u32::try_from(has).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shares_are_bounded_together_and_given_back() {
        let memory = Memory::new(100 * UNIT);
        let (mut first, mut second) = (Share::default(), Share::default());
        memory.enlarge(&mut first, FREE).await;
        assert_eq!(memory.units.available_permits(), 100, "short ones are free");
        memory.enlarge(&mut first, 60 * UNIT).await;
        memory.enlarge(&mut first, 60 * UNIT).await;
        assert_eq!(memory.units.available_permits(), 40);
        assert!(!memory.try_add(&mut second, 41 * UNIT));
        assert!(memory.try_add(&mut second, 40 * UNIT) && memory.try_add(&mut second, FREE));
        first.clear();
        assert_eq!(memory.units.available_permits(), 60);
        drop(second);
        assert_eq!(memory.units.available_permits(), 100);
        assert!(!memory.try_enlarge(&mut first, 101 * UNIT) && memory.try_enlarge(&mut first, 99 * UNIT));
        assert!(memory.try_enlarge(&mut first, 100 * UNIT) && memory.try_enlarge(&mut first, UNIT));
        assert_eq!(memory.units.available_permits(), 0);
    }
}
