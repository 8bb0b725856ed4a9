//! An inventory: orders take stock of several items, or nothing, while other orders do the same.
//!
//! `cargo run --example inventory`
//!
//! Each order is a transaction. It reads the stock of its items, and takes them if there is enough
//! of all. Orders that meet are run again, so that no item is sold twice and none is lost.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "an example")]

use tamis::{Db, Error, Keyspace, Transaction};

/// Why an order is refused.
#[derive(Debug)]
enum Refused {
    OutOfStock(String),
    Store(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Store(error)
    }
}

struct Inventory {
    db: Db,
    stock: Keyspace,
    orders: Keyspace,
}

fn in_stock(tx: &Transaction, stock: &Keyspace, item: &str) -> Result<u64, Error> {
    let value = tx.keyspace(stock).get(item)?;
    Ok(value.map_or(0, |bytes| u64::from_be_bytes(bytes.as_ref().try_into().unwrap())))
}

impl Inventory {
    fn open(dir: &std::path::Path) -> Result<Inventory, Error> {
        let db = Db::open(dir)?;
        let (stock, orders) = (db.keyspace("stock")?, db.keyspace("orders")?);
        Ok(Inventory { db, stock, orders })
    }

    fn receive(&self, item: &str, count: u64) -> Result<(), Error> {
        self.stock.fetch_add(item, count, tamis::ByteOrder::Big)?;
        Ok(())
    }

    /// Takes one of each item, and notes the order under its number.
    fn order(&self, number: u32, items: &[&str]) -> Result<(), Refused> {
        self.db.transact(|tx| {
            for item in items {
                let count = in_stock(tx, &self.stock, item)?;
                let left = count.checked_sub(1).ok_or_else(|| Refused::OutOfStock((*item).to_owned()))?;
                tx.put_in(&self.stock, item, left.to_be_bytes());
            }
            tx.put_in(&self.orders, number.to_be_bytes(), items.join(","));
            Ok(())
        })
    }
}

/// Four customers at once. Returns how many orders were filled.
fn sell(inventory: &Inventory) -> usize {
    std::thread::scope(|scope| {
        let customers = (0..4u32).map(|customer| {
            scope.spawn(move || {
                let items = [["apple", "pear"], ["pear", "plum"], ["plum", "apple"]];
                let orders = (0..100u32).map(|i| inventory.order(customer * 100 + i, &items[i as usize % 3]));
                let is_filled = |order: &Result<(), Refused>| match order {
                    Ok(()) => true,
                    Err(Refused::OutOfStock(item)) => {
                        assert!(items.iter().flatten().any(|ordered| ordered == item));
                        false
                    }
                    Err(Refused::Store(error)) => panic!("{error}"),
                };
                orders.filter(is_filled).count()
            })
        });
        customers.collect::<Vec<_>>().into_iter().map(|customer| customer.join().unwrap()).sum()
    })
}

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let inventory = Inventory::open(&dir.path().join("db"))?;
    for item in ["apple", "pear", "plum"] {
        inventory.receive(item, 100)?;
    }
    let filled = sell(&inventory);
    println!("{filled} of 400 orders filled");
    for entry in inventory.stock.iter() {
        let (item, count) = entry?;
        let count = u64::from_be_bytes(count.as_ref().try_into().unwrap());
        println!("{}: {count} left", String::from_utf8_lossy(&item));
    }
    println!("{} orders noted", inventory.orders.keys(..).count());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_sold_once() {
        let dir = tempfile::tempdir().unwrap();
        let inventory = Inventory::open(&dir.path().join("db")).unwrap();
        ["apple", "pear", "plum"].iter().for_each(|item| inventory.receive(item, 50).unwrap());
        let filled = sell(&inventory);
        assert_eq!(inventory.orders.keys(..).count(), filled);
        let left: u64 =
            inventory.stock.values(..).map(|value| value.unwrap().iter().map(|&b| u64::from(b)).sum::<u64>()).sum();
        assert_eq!(2 * filled as u64 + left, 150, "counts below 256 are their last byte");
    }
}
