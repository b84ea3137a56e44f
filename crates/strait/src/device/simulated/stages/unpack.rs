//! Unpacks keys to words.

use super::super::memory::nth;
use super::super::random::random_order;
use super::super::word::DeviceWord;
use super::{Machine, require};
use crate::device::abi::{Pack, Unpack};
use crate::error::Result;

pub(super) fn unpack<W: DeviceWord>(machine: &mut Machine, stage: &Unpack) -> Result<()> {
    let packs = machine.space.read::<Pack>(stage.packs, stage.count.into(), "packs")?;
    check_apart(&packs)?;
    for which in random_order(&mut machine.random, packs.len()) {
        let Pack { at, base, first, rows, bytes } = packs[which];
        require(bytes <= 8, "keys are packed to 8 bytes at most")?;
        let (rows, width) = (u64::from(rows), bytes as usize);
        let packed =
            machine.space.read::<u8>(nth::<u8>(stage.packed, at), rows * width as u64, "packed")?;
        let key = |row: usize| {
            let mut value = [0u8; 8];
            value[..width].copy_from_slice(&packed[row * width..][..width]);
            W::from_u64(base.wrapping_add(u64::from_le_bytes(value)))
        };
        let keys: Vec<W> = (0..rows as usize).map(key).collect();
        machine.space.write(nth::<W>(stage.keys, first), &keys, "keys")?;
    }
    Ok(())
}

/// Packs are unpacked in parallel, so no two may share a row.
fn check_apart(packs: &[Pack]) -> Result<()> {
    let mut rows: Vec<(u64, u64)> = packs
        .iter()
        .filter(|pack| pack.rows > 0)
        .map(|pack| (pack.first, pack.first.saturating_add(pack.rows.into())))
        .collect();
    rows.sort_unstable();
    require(rows.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two packs have one row")
}
