//! Works on a store's files without opening the store: the crate `tamis-doctor`, with its examples.
//! `fuzz` has the functions that fuzz targets call.

#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
pub(crate) mod tests;

///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("words.db");
/// # let db = tamis::Db::open(&path)?;
/// # db.put("apple", "1")?;
/// # db.close()?;
/// use tamis::inspect::{FileKind, Inspector};
///
/// let inspector = Inspector::new();
/// for file in inspector.files(&path)? {
///     if let FileKind::Table(_) = file.kind {
///         let table = inspector.table(&file.path)?;
///         println!("{}: {} entries", file.path.display(), table.properties().entries);
///     }
/// }
/// let verified = inspector.verify(&path, &mut |fault| println!("{fault}"))?;
/// assert_eq!(verified.damaged, 0);
/// # Ok(()) }
/// ```
#[doc(inline)]
pub use tamis_doctor::inspect;
///
/// ```
/// # fn main() -> tamis::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let path = dir.path().join("words.db");
/// # let db = tamis::Db::open(&path)?;
/// # db.put("apple", "1")?;
/// # db.close()?;
/// # let current = path.join("CURRENT");
/// # std::fs::remove_file(&current).expect("it is there");
/// use tamis::RepairOptions;
///
/// let report = tamis::repair(&path, RepairOptions::new())?;
/// for loss in &report.losses {
///     println!("{loss}");
/// }
/// let db = tamis::Db::open(&path)?;
/// assert_eq!(db.get("apple")?.as_deref(), Some(&b"1"[..]));
/// # Ok(()) }
/// ```
#[doc(inline)]
pub use tamis_doctor::repair::repair;
pub use tamis_doctor::repair::{Loss, LossKind, MovedFile, RepairBasis, RepairFault, RepairOptions, RepairReport};
