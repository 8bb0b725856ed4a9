//! Images and their thumbnails: long values apart from the tables, and short ones in them.
//!
//! `cargo run --example images`
//!
//! A gallery lists names and sizes far more often than it shows an image. Two keyspaces keep the
//! two apart: `info` has a short record for each image, and `images` has the bytes, in value files
//! (`separate_values`). A batch writes both, so that neither is there without the other. Listing
//! reads no image, replacing an image rewrites no other one, and the space of what was replaced or
//! deleted comes back by itself.
#![allow(clippy::unwrap_used, reason = "an example")]

use tamis::{Db, Error, Keyspace, KeyspaceOptions, WriteBatch};

/// Values of a page and more are worth a read of their own.
const APART_FROM: u32 = 4096;

struct Gallery {
    db: Db,
    info: Keyspace,
    images: Keyspace,
}

impl Gallery {
    fn open(dir: &std::path::Path) -> Result<Gallery, Error> {
        let db = Db::open(dir)?;
        let info = db.keyspace("info")?;
        let images = db.keyspace_with("images", KeyspaceOptions::new().separate_values(APART_FROM))?;
        Ok(Gallery { db, info, images })
    }

    /// Adds an image or replaces it.
    fn put(&self, name: &str, title: &str, image: &[u8]) -> Result<(), Error> {
        let mut batch = WriteBatch::new();
        batch.put_in(&self.info, name, format!("{}\t{title}", image.len()));
        batch.put_in(&self.images, name, image);
        self.db.write(batch).map(|_| ())
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let mut batch = WriteBatch::new();
        batch.delete_in(&self.info, name);
        batch.delete_in(&self.images, name);
        self.db.write(batch).map(|_| ())
    }

    /// Names, sizes and titles of an album's images. Reads no image.
    fn list(&self, album: &str) -> Result<Vec<String>, Error> {
        let line =
            |name: &[u8], info: &[u8]| format!("{}\t{}", String::from_utf8_lossy(name), String::from_utf8_lossy(info));
        self.info.prefix(format!("{album}/")).map(|entry| entry.map(|(name, info)| line(&name, &info))).collect()
    }
}

fn main() -> Result<(), Error> {
    let dir = tempfile::tempdir().unwrap();
    let gallery = Gallery::open(dir.path())?;
    for i in 0..200 {
        let image: Vec<u8> = (0..100_000u32).map(|at| (at ^ i).to_le_bytes()[0]).collect();
        gallery.put(&format!("holidays/{i:03}.jpg"), "at the sea", &image)?;
    }
    gallery.put("portraits/me.jpg", "a portrait", &vec![7; 50_000])?;

    println!("{}", gallery.list("portraits")?.join("\n"));
    assert_eq!(gallery.list("holidays")?.len(), 200);
    let image = gallery.images.get("holidays/007.jpg")?.unwrap();
    assert_eq!((image.len(), image[7]), (100_000, 0));

    // A thumbnail is short: it lies in a table, whatever keyspace it is in.
    gallery.put("portraits/thumbnail.jpg", "a portrait", &[7; 500])?;

    for i in 0..200 {
        gallery.delete(&format!("holidays/{i:03}.jpg"))?;
    }
    gallery.images.compact_range(..)?;
    gallery.db.wait_for_compactions()?;
    let stats = gallery.db.stats();
    let values = stats.keyspaces.iter().find(|keyspace| keyspace.name == "images").unwrap().values;
    println!("{} in value files, {} bytes", values.values, values.size);
    assert!(values.size < 100_000, "the holidays' space is back");
    Ok(())
}
