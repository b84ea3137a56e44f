//! Tables: clears them, inserts rows, makes groups, and looks keys up.
//!
//! A slot has one of four layouts (the numbers are bytes, for words of 4 and of 8 bytes):
//!
//! ```text
//!   direct   begin count               8   8      slot = key - min; the key is not stored
//!   array    value                     4   8      likewise, and a bit says whether it has one
//!   unique   key value                 8  16      slot = top bits of the mixed key, or after
//!   groups   key (gap) begin count    16  16      likewise; values are in groups[begin..][..count]
//! ```
//!
//! An empty slot holds a key whose home is the next slot. Probing could put such a key there only after it
//! has passed every other slot. That never happens, because a table is never full. So no key is reserved.
//! Four slots, bits 2, words of 32 bits:
//!
//! ```text
//!   slot         0           1           2           3
//!   empty     40000000    80000000    c0000000    00000000
//! ```
//!
//! A table whose bits are zero is compact: it has any number of slots, and the home slot follows from the
//! top 32 bits of a key by a multiplication. Three slots:
//!
//! ```text
//!   slot         0           1           2
//!   empty     55555556    aaaaaaab    00000000
//! ```

use std::mem::offset_of;

use super::super::memory::{Space, aligned, nth};
use super::super::random::random_order;
use super::super::word::{DeviceWord, Source};
use super::{Machine, require};
use crate::device::abi::{ClearTable, Control, DeviceTable, FillGroups, Insert, PlaceGroups};
use crate::error::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Direct,
    Array,
    Unique,
    Groups,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot<W> {
    key: W,
    value: W,
    begin: u32,
    count: u32,
    /// Whether an array has a value here.
    taken: bool,
}

/// A copy of a table's slots.
pub(super) struct Slots<W> {
    table: DeviceTable,
    layout: Layout,
    slots: Vec<Slot<W>>,
}

/// The result of a search for a key.
enum SearchEnd {
    At(usize),
    /// The key is not there; this is where it would go.
    Empty(usize),
    Nowhere,
}

impl<W: DeviceWord> Slots<W> {
    /// Creates the view of a table, with groups or with one value per slot.
    fn new(table: &DeviceTable, groups: bool) -> Result<Slots<W>> {
        let layout = match (table.direct != 0, groups) {
            (true, true) => Layout::Direct,
            (true, false) => Layout::Array,
            (false, true) => Layout::Groups,
            (false, false) => Layout::Unique,
        };
        // With a single slot, every key would be at home there, so none could mark it as empty.
        if table.direct == 0 && table.bits == 0 {
            let fits = (2..1 << 32).contains(&table.slot_count);
            require(fits, "a compact table's slots are not 2 to 2^32")?;
        } else if table.direct == 0 {
            require((1..=32).contains(&table.bits), "a table's bits are not 1 to 32")?;
            require(table.slot_count == 1 << table.bits, "slot_count is not 1 << bits")?;
        }
        Ok(Slots { table: *table, layout, slots: Vec::new() })
    }

    /// Returns the number of 32-bit integers per slot.
    fn parts(&self) -> usize {
        match self.layout {
            Layout::Direct => 2,
            Layout::Array => size_of::<W>() / 4,
            Layout::Unique => 2 * size_of::<W>() / 4,
            Layout::Groups => 4,
        }
    }

    pub(super) fn load(space: &Space, table: &DeviceTable, groups: bool) -> Result<Slots<W>> {
        let mut slots = Slots::<W>::new(table, groups)?;
        let parts = slots.parts();
        aligned(table.slots, 4 * parts as u64, "slots")?;
        let all = table.slot_count.saturating_mul(parts as u64);
        let raw = space.read::<u32>(table.slots, all, "slots")?;
        slots.slots = raw.chunks_exact(parts).map(|raw| slots.decode(raw)).collect();
        if slots.layout == Layout::Array && table.taken != 0 {
            let bits = space.read::<u32>(table.taken, table.slot_count.div_ceil(32), "taken")?;
            for (at, slot) in slots.slots.iter_mut().enumerate() {
                slot.taken = bits[at / 32] >> (at % 32) & 1 != 0;
            }
        }
        Ok(slots)
    }

    fn store(&self, space: &mut Space) -> Result<()> {
        let raw: Vec<u32> = self.slots.iter().flat_map(|slot| self.encode(slot)).collect();
        space.write(self.table.slots, &raw, "slots")?;
        if self.layout != Layout::Array {
            return Ok(());
        }
        let word = |slots: &[Slot<W>]| {
            (0..).zip(slots).fold(0u32, |word, (at, slot)| word | u32::from(slot.taken) << at)
        };
        let bits: Vec<u32> = self.slots.chunks(32).map(word).collect();
        space.write(self.table.taken, &bits, "taken")
    }

    fn decode(&self, raw: &[u32]) -> Slot<W> {
        let word = |at: usize| {
            let low = u64::from(raw[at]);
            W::from_u64(if W::BITS == 64 { low | u64::from(raw[at + 1]) << 32 } else { low })
        };
        match self.layout {
            Layout::Direct => Slot { begin: raw[0], count: raw[1], ..Slot::default() },
            // Without a bitmap, all slots are taken.
            Layout::Array => Slot { value: word(0), taken: true, ..Slot::default() },
            Layout::Unique => Slot { key: word(0), value: word(raw.len() / 2), ..Slot::default() },
            Layout::Groups => {
                Slot { key: word(0), begin: raw[2], count: raw[3], ..Slot::default() }
            }
        }
    }

    fn encode(&self, slot: &Slot<W>) -> Vec<u32> {
        let word = |word: W| {
            let halves = [word.to_u64() as u32, (word.to_u64() >> 32) as u32];
            halves[..size_of::<W>() / 4].to_vec()
        };
        match self.layout {
            Layout::Direct => vec![slot.begin, slot.count],
            Layout::Array => word(slot.value),
            Layout::Unique => [word(slot.key), word(slot.value)].concat(),
            Layout::Groups => {
                let mut raw = word(slot.key);
                raw.resize(2, 0);
                raw.extend([slot.begin, slot.count]);
                raw
            }
        }
    }

    /// Returns the key that marks an empty slot: the smallest key whose home is the next slot.
    fn empty(&self, slot: usize) -> W {
        let slots = self.table.slot_count;
        let after = (slot as u64 + 1) % slots;
        match self.table.bits {
            0 => W::from_u64((after << 32).div_ceil(slots) << (W::BITS - 32)),
            bits => W::from_u64(after << (W::BITS - bits)),
        }
    }

    /// Returns the home slot of a mixed key.
    fn home(&self, key: W) -> usize {
        match self.table.bits {
            0 => (((key.to_u64() >> (W::BITS - 32)) * self.table.slot_count) >> 32) as usize,
            bits => (key.to_u64() >> (W::BITS - bits)) as usize,
        }
    }

    /// Searches a key: raw in a direct table, mixed in any other.
    fn find(&self, key: W) -> SearchEnd {
        if self.table.direct != 0 {
            let slot = W::from_u64(key.to_u64().wrapping_sub(self.table.min)).to_u64();
            return match self.slots.get(slot as usize) {
                None => SearchEnd::Nowhere,
                Some(at) if self.layout == Layout::Array && !at.taken => {
                    SearchEnd::Empty(slot as usize)
                }
                Some(_) => SearchEnd::At(slot as usize),
            };
        }
        let (home, slots) = (self.home(key), self.slots.len());
        for slot in (home..slots).chain(0..home) {
            let held = self.slots[slot].key;
            // The mark is checked first: a key that equals it cannot be in its slot.
            if held == self.empty(slot) {
                return SearchEnd::Empty(slot);
            }
            if held == key {
                return SearchEnd::At(slot);
            }
        }
        SearchEnd::Nowhere
    }

    /// Returns the values of a key, always in the same order.
    pub(super) fn values(&self, space: &Space, key: W) -> Result<Vec<W>> {
        let SearchEnd::At(slot) = self.find(key) else { return Ok(Vec::new()) };
        let Slot { value, begin, count, .. } = self.slots[slot];
        if matches!(self.layout, Layout::Unique | Layout::Array) {
            return Ok(vec![value]);
        }
        space.read(nth::<W>(self.table.groups, begin.into()), count.into(), "groups")
    }
}

pub(super) fn clear<W: DeviceWord>(machine: &mut Machine, stage: &ClearTable) -> Result<()> {
    let mut slots = Slots::<W>::load(&machine.space, &stage.table, stage.table.groups != 0)?;
    for slot in 0..slots.slots.len() {
        // The values of an array stay unchanged.
        let slot_was = &slots.slots[slot];
        let value = if slots.layout == Layout::Array { slot_was.value } else { W::default() };
        let key = if stage.table.direct != 0 { W::default() } else { slots.empty(slot) };
        slots.slots[slot] = Slot { key, value, ..Slot::default() };
    }
    slots.store(&mut machine.space)
}

pub(super) fn insert<W: DeviceWord>(machine: &mut Machine, stage: &Insert) -> Result<()> {
    let Insert { table, columns, tuples, rows, slot_of, rank, control } = *stage;
    let groups = slot_of != 0;
    require(groups || table.groups == 0, "a table with groups wants the slots of rows")?;
    require(!table.is_array() || table.taken != 0, "an array has bits to fill")?;
    require(tuples == 0 || table.direct == 0, "a direct table takes raw keys, from columns")?;
    let source = Source { columns, tuples }.read::<W>(&machine.space, 0, rows)?;
    let mut slots = Slots::<W>::load(&machine.space, &table, groups)?;
    let (mut slots_of, mut ranks) = (vec![0u32; source.len()], vec![0u32; source.len()]);
    let mut duplicates = false;
    let mut free = (0..slots.slots.len())
        .filter(|&at| table.direct == 0 && slots.slots[at].key == slots.empty(at))
        .count();

    for row in random_order(&mut machine.random, source.len()) {
        let raw = tuples == 0 && table.direct == 0;
        let key = source[row].key;
        let key = if raw { key.mixed_by(table.mixing) } else { key };
        let slot = match slots.find(key) {
            SearchEnd::At(slot) => {
                duplicates |= !groups;
                slot
            }
            SearchEnd::Empty(slot) => {
                // Only arrays and direct tables may become full.
                require(free > 1 || table.direct != 0, "the table is full")?;
                free = free.saturating_sub(1);
                let value = source[row].value;
                slots.slots[slot] = Slot { key, value, taken: true, ..Slot::default() };
                slot
            }
            SearchEnd::Nowhere => return require(false, "a key outside the table"),
        };
        let count = &mut slots.slots[slot].count;
        (slots_of[row], ranks[row]) = (slot as u32, *count);
        *count = count.wrapping_add(1);
    }

    slots.store(&mut machine.space)?;
    if groups {
        machine.space.write(slot_of, &slots_of, "slot_of")?;
        return machine.space.write(rank, &ranks, "rank");
    }
    machine.space.check::<Control>(control, 1, "control")?;
    if duplicates {
        let field = control + offset_of!(Control, duplicates) as u64;
        machine.space.set(field, 0, 1u32, "control")?;
    }
    Ok(())
}

pub(super) fn place_groups<W: DeviceWord>(
    machine: &mut Machine,
    stage: &PlaceGroups,
) -> Result<()> {
    let mut slots = Slots::<W>::load(&machine.space, &stage.table, true)?;
    let mut cursor = machine.space.get::<u64>(stage.cursor, "cursor")?;
    for slot in random_order(&mut machine.random, slots.slots.len()) {
        let slot = &mut slots.slots[slot];
        if slot.count > 0 {
            slot.begin = cursor as u32;
            cursor = cursor.wrapping_add(slot.count.into());
        }
    }
    slots.store(&mut machine.space)?;
    machine.space.set(stage.cursor, 0, cursor, "cursor")
}

pub(super) fn fill_groups<W: DeviceWord>(machine: &mut Machine, stage: &FillGroups) -> Result<()> {
    let source = Source { columns: stage.columns, tuples: stage.tuples };
    let values = source.values::<W>(&machine.space, 0, stage.rows)?;
    let slots = Slots::<W>::load(&machine.space, &stage.table, true)?;
    let slots_of = machine.space.read::<u32>(stage.slot_of, stage.rows, "slot_of")?;
    let ranks = machine.space.read::<u32>(stage.rank, stage.rows, "rank")?;
    for ((value, slot), rank) in values.into_iter().zip(slots_of).zip(ranks) {
        let slot = slots.slots.get(slot as usize);
        require(slot.is_some(), "a row's slot is outside the table")?;
        let begin = slot.map_or(0, |slot| slot.begin);
        let place = u64::from(begin) + u64::from(rank);
        machine.space.set(stage.table.groups, place, value, "groups")?;
    }
    Ok(())
}
