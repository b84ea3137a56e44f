//! A damaged file is an error, never a wrong row.

use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex};

use strait_testkit::Rng;

use super::{SpillStore, numbers, spill_with, unlimited};
use crate::error::Error;
use crate::spill::{SpillCompression, SpillFile};

/// A file in memory that tests can change.
#[derive(Debug, Default, Clone)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl SpillStore for Bytes {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(self.clone()))
    }

    fn place(&self) -> String {
        "memory".to_string()
    }
}

impl SpillFile for Bytes {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(())
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.0.lock().expect("no panic").clone())))
    }
}

/// Writes three blocks, changes the file, and reads all blocks. Returns the numbers of rows, or the first error.
fn read_after(change: impl FnOnce(&mut Vec<u8>, usize)) -> Result<Vec<usize>, Error> {
    read_compressed_after(SpillCompression::None, change)
}

/// Does the same with compressed blocks.
fn read_compressed_after(
    compression: SpillCompression,
    change: impl FnOnce(&mut Vec<u8>, usize),
) -> Result<Vec<usize>, Error> {
    let file = Bytes::default();
    let batches = [numbers(0, 3), numbers(3, 3), numbers(6, 3)];
    let rows = spill_with(&(Arc::new(file.clone()) as _), compression, &batches);
    let marks = rows.marks();
    assert!(marks.iter().all(|mark| mark.compression == compression));
    change(&mut file.0.lock().expect("no panic"), marks[0].length as usize);
    let source = rows.source(batches[0].schema());
    let next = || source.batch(&unlimited()).transpose();
    std::iter::from_fn(next).map(|batch| batch.map(|batch| batch.num_rows())).collect()
}

fn is_damage(result: Result<Vec<usize>, Error>, what: &str) {
    match result {
        Err(Error::Spill { place, reason, .. }) => {
            assert!(place == "memory" && reason.contains("block "), "{what}: {reason}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn length() -> usize {
    let mut length = 0;
    read_after(|bytes, _| length = bytes.len()).expect("not damaged");
    length
}

#[test]
fn an_undamaged_file_is_read() {
    assert_eq!(read_after(|_, _| ()).expect("not damaged"), [3, 3, 3]);
}

#[test]
fn every_changed_byte_is_found() {
    for at in 0..length() {
        is_damage(
            read_after(|bytes, _| bytes[at] ^= 1 << (at % 8)),
            &format!("bit {} of byte {at}", at % 8),
        );
        is_damage(read_after(|bytes, _| bytes[at] = !bytes[at]), &format!("byte {at}"));
    }
}

#[test]
fn damage_of_compressed_blocks_is_found() {
    let mut rng = Rng::new(1);
    for compression in [SpillCompression::Lz4, SpillCompression::Zstd] {
        let read = |change: &mut dyn FnMut(&mut Vec<u8>, usize)| {
            read_compressed_after(compression, |bytes, block| change(bytes, block))
        };
        assert_eq!(read(&mut |_, _| ()).expect("not damaged"), [3, 3, 3]);
        for case in 0..2000 {
            let changed = read(&mut |bytes, _| {
                let at = rng.below(bytes.len());
                bytes[at] ^= 1 << rng.below(8);
            });
            is_damage(changed, &format!("{compression}, case {case}"));
        }
        for part in 1..20 {
            let cut = read(&mut |bytes, _| bytes.truncate(bytes.len() * part / 20));
            is_damage(cut, &format!("{compression}, {part} of 20 parts"));
        }
        is_damage(read(&mut |bytes, block| bytes.rotate_left(block)), "moved");
    }
}

#[test]
fn every_cut_is_found() {
    for length in 0..length() {
        is_damage(read_after(|bytes, _| bytes.truncate(length)), &format!("cut at {length}"));
    }
}

#[test]
fn blocks_in_another_order_are_found() {
    is_damage(read_after(|bytes, block| bytes.rotate_left(block)), "moved");
    is_damage(read_after(|bytes, block| bytes.copy_within(..block, block)), "written twice");
}
