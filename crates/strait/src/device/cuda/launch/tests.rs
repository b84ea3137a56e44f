//! Single stages against naive answers: small on simulated devices, and large on a GPU. GPU tests are
//! skipped without a GPU, unless `STRAIT_REQUIRE_GPU` is set. `STRAIT_REDUCED=1` uses few rows on the GPU,
//! for runs under compute-sanitizer.

mod frequent;

use std::sync::Arc;

use fastrand::Rng;

use crate::device::abi::{
    Bounds, ClearTable, Columns, Control, DeviceTable, Digit, FillGroups, Histogram, Insert,
    MAX_PASSES, Mixing, Output, Pack, PlaceGroups, Probe, Scatter, Tally, Unpack,
};
use crate::device::cuda::{CudaDevice, Gpu};
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{
    Device, DeviceStage, Flavour, Memory, Pinned, Scatterer, Stream, View, abi::BINS,
};
use crate::memory::Plain;
use crate::word::Width;
use crate::word::{KeyWord, Mixer};

const SCATTERERS: [Scatterer; 4] =
    [Scatterer::Standard, Scatterer::Linear, Scatterer::Shared, Scatterer::Hierarchical];
/// The initial byte of target memory, to detect writes to other places.
const UNTOUCHED: u8 = 0xa5;

trait TestWord: KeyWord {
    const WORD: Width;
}

impl TestWord for u32 {
    const WORD: Width = Width::W32;
}

impl TestWord for u64 {
    const WORD: Width = Width::W64;
}

/// The mixer of these tests.
fn mixer<W: KeyWord>() -> Mixer<W> {
    Mixer::new(7)
}

fn mixing<W: KeyWord>() -> Mixing {
    Mixing::of(mixer::<W>())
}

/// A device with one stream, and the memory that a test keeps on it.
struct Bench {
    device: Box<dyn Device>,
    /// Whether it is a GPU: tests use more rows there.
    large: bool,
    stream: Stream,
    random: Rng,
    kept: Vec<Memory>,
}

impl Bench {
    fn new(device: Box<dyn Device>, large: bool, seed: u64) -> Bench {
        let stream = device.stream(0).unwrap();
        Bench { device, large, stream, random: Rng::with_seed(seed), kept: Vec::new() }
    }

    /// Allocates memory for `count` values.
    fn room<T>(&mut self, count: usize) -> u64 {
        let bytes = (count * size_of::<T>()).max(1);
        let memory = self.device.allocate(bytes as u64, "a test").unwrap();
        self.kept.push(memory);
        self.kept[self.kept.len() - 1].address()
    }

    fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        let (address, bytes) = (self.room::<T>(values.len()), size_of_val(values));
        if values.is_empty() {
            return address;
        }
        let pinned = self.device.pinned(bytes, "a test").unwrap();
        // SAFETY: the memory has this many bytes; no copy is in progress.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), pinned.start, bytes) };
        let view = View::new(self.device.id(), address, bytes as u64);
        self.device.copy_in(self.stream, &pinned, 0, view).unwrap();
        self.device.synchronize(self.stream).unwrap();
        address
    }

    fn zeros<T>(&mut self, count: usize) -> u64 {
        self.filled(count * size_of::<T>(), 0)
    }

    fn filled(&mut self, bytes: usize, byte: u8) -> u64 {
        let address = self.room::<u8>(bytes);
        let view = View::new(self.device.id(), address, bytes as u64);
        self.device.fill(self.stream, view, byte).unwrap();
        address
    }

    fn get<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let bytes = count * size_of::<T>();
        let pinned = self.device.pinned(bytes.max(1), "a test").unwrap();
        let view = View::new(self.device.id(), address, bytes as u64);
        self.device.copy_out(self.stream, view, &pinned, 0).unwrap();
        self.device.synchronize(self.stream).unwrap();
        values(&pinned, count)
    }

    fn run<W: TestWord>(&self, stage: DeviceStage) {
        // SAFETY: memory of the lengths that stages need, which outlives the call.
        unsafe { self.device.run(self.stream, W::WORD, &stage) }.unwrap();
        self.device.synchronize(self.stream).unwrap();
    }

    fn words<W: TestWord>(&mut self, count: usize) -> Vec<W> {
        (0..count).map(|_| W::from_u64(self.random.u64(..))).collect()
    }

    /// Releases all memory, between cases.
    fn clear(&mut self) {
        self.kept.clear();
    }
}

/// Returns the first values of pinned memory.
fn values<T: Plain>(pinned: &Pinned, count: usize) -> Vec<T> {
    assert!(count * size_of::<T>() <= pinned.len);
    // SAFETY: this many plain, aligned values lie there, and the stream was synchronised.
    unsafe { std::slice::from_raw_parts(pinned.start.cast::<T>(), count).to_vec() }
}

/// Runs a test on simulated devices, and on a GPU if there is one.
fn everywhere(test: fn(&mut Bench)) {
    for seed in 0..3 {
        let device =
            Simulated::new(Settings { memory: 64 << 20, shape: TINY, seed, ..Settings::default() });
        test(&mut Bench::new(Box::new(device), false, seed));
    }
    match Gpu::detect().and_then(|gpus| CudaDevice::new(&gpus[0], None)) {
        Ok(device) => test(&mut Bench::new(Box::new(device), true, 7)),
        Err(error) => {
            assert!(std::env::var_os("STRAIT_REQUIRE_GPU").is_none(), "{error}");
            println!("left out: {error}");
        }
    }
}

fn reduced() -> bool {
    std::env::var("STRAIT_REDUCED").is_ok_and(|value| value == "1")
}

type Tuple<W> = [W; 2];

fn digit<W: TestWord>(key: W, digit: Digit) -> usize {
    ((key.to_u64() >> digit.shift) & u64::from(digit.mask)) as usize
}

/// One case of a scatterer.
#[derive(Debug, Clone, Copy)]
struct Case {
    how: Scatterer,
    bits: u32,
    rows: usize,
    /// Whether the source is tuples.
    tuples: bool,
    /// Whether columns have values.
    values: bool,
    /// Whether nearly all keys are equal.
    skewed: bool,
    /// Whether the target is host memory.
    mapped: bool,
}

/// Where the target is.
enum Target {
    Device(u64),
    Host(Arc<Pinned>, Memory),
}

fn scatter<W: TestWord>(bench: &mut Bench, case: Case) {
    let what = format!("{:?} {case:?}", W::WORD);
    let (rows, partitions) = (case.rows, 1usize << case.bits);
    let wanted = Digit { shift: W::BITS - case.bits.max(1), mask: (1 << case.bits) - 1 };
    let mut keys = bench.words::<W>(rows);
    if case.skewed {
        keys.iter_mut().skip(3).for_each(|key| *key = W::from_u64(42));
    }
    let payload: Vec<W> = match case.values || case.tuples {
        true => bench.words::<W>(rows),
        false => (0..rows as u64).map(|row| W::from_u64(77 + row)).collect(),
    };
    let tuple = |(key, value): (&W, &W)| [key.mix(mixer()), *value];
    let mut expected: Vec<Tuple<W>> = keys.iter().zip(&payload).map(tuple).collect();
    let of_tuples = if case.tuples { bench.put(&flat(&expected)) } else { 0 };
    let columns = Columns {
        keys: if case.tuples { 0 } else { bench.put(&keys) },
        values: if case.values && !case.tuples { bench.put(&payload) } else { 0 },
        first: 77,
    };

    let counts = bench.zeros::<u64>(partitions);
    bench.run::<W>(DeviceStage::Tally(Tally {
        keys: if case.tuples { of_tuples } else { columns.keys },
        rows: rows as u64,
        counts,
        digit: wanted,
        stride: if case.tuples { 2 } else { 1 },
        mix: u32::from(!case.tuples),
        mixing: mixing::<W>(),
    }));
    let counts = bench.get::<u64>(counts, partitions);
    let mut by_hand = vec![0u64; partitions];
    expected.iter().for_each(|tuple| by_hand[digit(tuple[0], wanted)] += 1);
    assert_eq!(counts, by_hand, "{what}");

    // Partitions start anywhere in a line. The gap before each must stay unchanged.
    let (mut begins, mut end) = (Vec::new(), 0);
    for count in &counts {
        end += 1 + bench.random.u64(..11);
        begins.push(end);
        end += count;
    }
    end += 5;
    let bytes = end as usize * 2 * size_of::<W>();
    let target = match case.mapped {
        true => {
            let pinned = bench.device.pinned(bytes, "a test").unwrap();
            // SAFETY: nothing else reads or writes it yet.
            unsafe { pinned.bytes_mut() }.fill(UNTOUCHED);
            let memory = bench.device.mapped(&pinned).unwrap();
            Target::Host(pinned, memory)
        }
        false => Target::Device(bench.filled(bytes, UNTOUCHED)),
    };
    let cursors = bench.put(&begins);
    let needed = bench.device.scatter_bytes(W::WORD, case.how, partitions as u32);
    let buffers = if needed > 0 { bench.room::<u8>(needed as usize) } else { 0 };
    // In two launches. The second continues where the first ended.
    let (word, cut) = (size_of::<W>() as u64, rows as u64 / 3);
    for (first, rows) in [(0, cut), (cut, rows as u64 - cut)] {
        let moved = |address: u64, size: u64| if address == 0 { 0 } else { address + first * size };
        let stage = Scatter {
            columns: Columns {
                keys: moved(columns.keys, word),
                values: moved(columns.values, word),
                first: columns.first + first,
            },
            tuples: moved(of_tuples, 2 * word),
            to_tuples: match &target {
                Target::Device(address) => *address,
                Target::Host(_, memory) => memory.address(),
            },
            rows,
            cursors,
            buffers,
            digit: wanted,
            mixing: mixing::<W>(),
        };
        bench.run::<W>(DeviceStage::Scatter(case.how, stage));
    }

    let ends: Vec<u64> = begins.iter().zip(&counts).map(|(begin, count)| begin + count).collect();
    assert_eq!(bench.get::<u64>(cursors, partitions), ends, "{what}");
    let found: Vec<W> = match &target {
        Target::Device(address) => bench.get(*address, 2 * end as usize),
        Target::Host(pinned, _) => values(pinned, 2 * end as usize),
    };
    let found: Vec<Tuple<W>> = found.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
    expected.sort_unstable_by_key(|tuple| (digit(tuple[0], wanted), *tuple));
    let untouched = W::from_u64(u64::from_ne_bytes([UNTOUCHED; 8]));
    let (mut at, mut gap) = (0, 0);
    for partition in 0..partitions {
        let (begin, end) = (begins[partition] as usize, ends[partition] as usize);
        let between = &found[gap..begin];
        assert!(between.iter().flatten().all(|&word| word == untouched), "{what}: a gap");
        let mut run = found[begin..end].to_vec();
        run.sort_unstable();
        assert!(run == expected[at..at + run.len()], "{what}: partition {partition}");
        (at, gap) = (at + run.len(), end);
    }
    assert!(found[gap..].iter().flatten().all(|&word| word == untouched), "{what}: the end");
    bench.clear();
}

/// Returns tuples as words.
fn flat<W: TestWord>(tuples: &[Tuple<W>]) -> Vec<W> {
    tuples.iter().flatten().copied().collect()
}

#[test]
fn tuples_come_to_their_partitions() {
    everywhere(|bench| {
        let sizes: &[usize] = match (bench.large, reduced()) {
            (false, _) => &[0, 1, 60],
            (true, true) => &[1, 9001],
            (true, false) => &[0, 1, 9001, 150_001],
        };
        for how in SCATTERERS {
            for bits in [0, 1, 6, 9, 11] {
                for (n, &rows) in sizes.iter().enumerate() {
                    for skewed in [false, true] {
                        let tuples = (n + bits as usize).is_multiple_of(2);
                        let (values, mapped) = (skewed, tuples != skewed);
                        let case = Case { how, bits, rows, tuples, values, skewed, mapped };
                        scatter::<u32>(bench, case);
                        scatter::<u64>(bench, case);
                    }
                }
            }
        }
    });
}

/// With so many rows, long buffers fill and are set aside, and spare buffers run out.
#[test]
fn long_buffers_fill() {
    everywhere(|bench| {
        let large = bench.large && !reduced();
        for how in [Scatterer::Shared, Scatterer::Hierarchical] {
            for (bits, tuples) in [(3, false), (6, true), (9, false), (9, true)] {
                let rows = if large { 1_000_003 << (bits / 3) } else { 100 };
                for mapped in [false, true] {
                    let case =
                        Case { how, bits, rows, tuples, values: true, skewed: false, mapped };
                    scatter::<u32>(bench, case);
                    scatter::<u64>(bench, case);
                }
            }
        }
    });
}

fn unpack<W: TestWord>(bench: &mut Bench) {
    let most = if bench.large && !reduced() { 200_000 } else { 40 };
    let (mut packed, mut packs, mut expected) = (Vec::<u8>::new(), Vec::new(), Vec::<W>::new());
    for bytes in [3u32, 0, 8, 1, 5, 2, 7, 4, 6, 0, 8, 3] {
        packed.resize(packed.len() + bench.random.u64(..9) as usize, 0xee);
        let (base, rows) = (bench.random.u64(..), bench.random.u64(..most) as u32);
        let (at, first) = (packed.len() as u64, expected.len() as u64);
        for _ in 0..rows {
            let value =
                bench.random.u64(..) & 1u64.checked_shl(8 * bytes).map_or(!0, |end| end - 1);
            packed.extend_from_slice(&value.to_le_bytes()[..bytes as usize]);
            expected.push(W::from_u64(base.wrapping_add(value)));
        }
        packs.push(Pack { at, base, first, rows, bytes });
    }
    // The kernel reads whole words, so the bytes after the last value must be initialised too.
    packed.resize(packed.len().next_multiple_of(8), 0xee);
    for packs in [&packs[..], &packs[..1], &packs[..0]] {
        let rows = packs.last().map_or(0, |pack| pack.first + u64::from(pack.rows)) as usize;
        let stage = Unpack {
            packed: bench.put(&packed),
            packs: bench.put(packs),
            keys: bench.filled(expected.len() * size_of::<W>(), UNTOUCHED),
            count: packs.len() as u32,
            unused: 0,
        };
        bench.run::<W>(DeviceStage::Unpack(stage));
        let found = bench.get::<W>(stage.keys, expected.len());
        assert!(found[..rows] == expected[..rows], "{:?}", W::WORD);
        let untouched = W::from_u64(u64::from_ne_bytes([UNTOUCHED; 8]));
        assert!(found[rows..].iter().all(|&word| word == untouched), "{:?}", W::WORD);
        bench.clear();
    }
}

#[test]
fn packed_keys_become_words() {
    everywhere(|bench| {
        unpack::<u32>(bench);
        unpack::<u64>(bench);
    });
}

/// Counts digits of a column and of tuples, and finds the partitions of a part.
fn count<W: TestWord>(bench: &mut Bench) {
    let rows = if bench.large { 30_001 } else { 50 };
    // The bits above the digit vary.
    let wanted = Digit { shift: W::BITS - 12, mask: 63 };
    let mut keys = bench.words::<W>(rows as usize);
    keys.sort_unstable_by_key(|&key| digit(key, wanted));
    let mut by_hand = vec![0; 64];
    keys.iter().for_each(|&key| by_hand[digit(key, wanted)] += 1);
    let tuples: Vec<Tuple<W>> = keys.iter().map(|&key| [key, key.mix(mixer())]).collect();
    let (column, tuples) = (bench.put(&keys), bench.put(&flat(&tuples)));
    let mut digits = [Digit::default(); MAX_PASSES];
    digits[0] = wanted;
    for (keys, stride) in [(column, 1), (tuples, 2)] {
        let (bins, passes) = (bench.zeros::<u64>(BINS), 1);
        let stage = Histogram { keys, rows, bins, digits, passes, stride, ..Histogram::default() };
        bench.run::<W>(DeviceStage::Histogram(stage));
        assert_eq!(bench.get::<u64>(bins, 64), by_hand, "{:?}, stride {stride}", W::WORD);
    }
    let (bounds, shift) = (bench.room::<u64>(65), wanted.shift);
    bench.run::<W>(DeviceStage::Bounds(Bounds { tuples, rows, bounds, shift, partitions: 64 }));
    let bounds = bench.get::<u64>(bounds, 65);
    let counts: Vec<u64> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(counts, by_hand, "{:?}", W::WORD);
    assert_eq!((bounds[0], bounds[64]), (0, rows));
    bench.clear();
}

#[test]
fn digits_are_counted_in_columns_and_tuples() {
    everywhere(|bench| {
        count::<u32>(bench);
        count::<u64>(bench);
    });
}

/// A compact table with keys at both ends of the range, and with keys that mark empty slots. Some are
/// inserted.
fn compact<W: TestWord>(bench: &mut Bench, slot_count: u64, percent: u64, groups: bool) {
    let what = format!("{:?}: {slot_count} slots, {percent} %, groups {groups}", W::WORD);
    let rows = (slot_count * percent / 100).max(1);
    let mark = |slot: u64| W::from_u64((slot << 32).div_ceil(slot_count) << (W::BITS - 32));
    let mut mixed = vec![W::from_u64(u64::MAX), W::from_u64(0)];
    mixed.extend((0..rows).map(|_| mark(bench.random.u64(..slot_count))));
    mixed.extend(bench.words::<W>(2 * rows as usize));
    mixed.sort_unstable();
    mixed.dedup();
    let last = mixed.len() - 1;
    mixed.swap(1, last);
    for i in (3..mixed.len()).rev() {
        mixed.swap(i, 2 + bench.random.u64(..i as u64 - 1) as usize);
    }
    let rows = rows.min(mixed.len() as u64);
    let all = mixed.len() as u64;
    // Both inserted and looked up as tuples, whose keys are mixed. Values are row numbers.
    let tuples: Vec<Tuple<W>> =
        (0u64..).zip(&mixed).map(|(row, &key)| [key, W::from_u64(row)]).collect();
    let tuples = bench.put(&flat(&tuples));
    let control = bench.zeros::<Control>(1);
    let mut table = DeviceTable { slot_count, mixing: mixing::<W>(), ..DeviceTable::default() };
    let mut insert = Insert { tuples, rows, control, ..Insert::default() };
    if groups {
        table.slots = bench.room::<[u64; 2]>(slot_count as usize);
        table.groups = bench.room::<W>(rows as usize);
        insert.slot_of = bench.room::<u32>(rows as usize);
        insert.rank = bench.room::<u32>(rows as usize);
    } else {
        table.slots = bench.room::<Tuple<W>>(slot_count as usize);
    }
    insert.table = table;
    bench.run::<W>(DeviceStage::ClearTable(ClearTable { table }));
    bench.run::<W>(DeviceStage::Insert(insert));
    if groups {
        let cursor = bench.zeros::<u64>(1);
        bench.run::<W>(DeviceStage::PlaceGroups(PlaceGroups { table, cursor }));
        let (slot_of, rank, columns) = (insert.slot_of, insert.rank, Columns::default());
        let fill = FillGroups { table, columns, tuples, rows, slot_of, rank };
        bench.run::<W>(DeviceStage::FillGroups(fill));
    }
    let build_flags = bench.zeros::<u8>(all as usize);
    let probe_flags = bench.zeros::<u8>(all as usize);
    let unmixing = Mixing::of(mixer::<W>().inverse());
    let output =
        Output { control, build_flags, probe_flags, mixed: 1, unmixing, ..Output::default() };
    let tile = bench.device.shape(W::WORD).probe_tile;
    let count = all.div_ceil(tile.into()) as u32;
    let probe = Probe { table, tuples, rows: all, count, tile, output, ..Probe::default() };
    bench.run::<W>(DeviceStage::Probe(Flavour::Exists, probe));
    let expected: Vec<u8> = (0..all).map(|row| u8::from(row < rows)).collect();
    assert!(bench.get::<u8>(probe_flags, all as usize) == expected, "{what}: probe side");
    assert!(bench.get::<u8>(build_flags, all as usize) == expected, "{what}: build side");
    assert_eq!(bench.get::<Control>(control, 1)[0].duplicates, 0, "{what}");
    let raw: Vec<W> = mixed.iter().map(|key| key.mix(mixer::<W>().inverse())).collect();
    let columns = Columns { keys: bench.put(&raw), values: 0, first: 0 };
    in_order::<W>(bench, (table, columns), all, rows, &what);
    bench.clear();
}

/// Looks `all` rows up in order. The first `rows` of them are in the table, and the value of each is its row
/// number.
fn in_order<W: TestWord>(
    bench: &mut Bench,
    (table, columns): (DeviceTable, Columns),
    all: u64,
    rows: u64,
    what: &str,
) {
    let single = table.groups == 0;
    let values = bench.filled(all as usize * size_of::<W>(), UNTOUCHED);
    let build_flags = if single { bench.zeros::<u8>(all as usize) } else { 0 };
    let bits = bench.filled(all.div_ceil(32) as usize * 4, UNTOUCHED);
    let control = bench.zeros::<Control>(1);
    let build = if single { values } else { 0 };
    let output = Output { control, build, build_flags, probe: bits, ..Output::default() };
    let tile = bench.device.shape(W::WORD).probe_tile;
    let count = all.div_ceil(tile.into()) as u32;
    let probe = Probe { table, columns, rows: all, count, tile, output, ..Probe::default() };
    bench.run::<W>(DeviceStage::ProbeInOrder(probe));
    let words = bench.get::<u32>(bits, all.div_ceil(32) as usize);
    let bit = |row: u64| u64::from(words[row as usize / 32] >> (row % 32) & 1);
    assert!((0..all).all(|row| bit(row) == u64::from(row < rows)), "{what}: bits in order");
    assert!((all..all.next_multiple_of(32)).all(|row| bit(row) == 0), "{what}: bits after the end");
    if single {
        let found = bench.get::<W>(values, rows as usize);
        assert!((0u64..).zip(found).all(|(row, value)| value.to_u64() == row), "{what}: values");
        let flags = bench.get::<u8>(build_flags, all as usize);
        assert!((0u64..).zip(flags).all(|(row, flag)| u64::from(flag) == u64::from(row < rows)));
    }
}

/// An array whose keys end at the largest word, with one key in `missing` absent. It is looked up by its own
/// keys and by neighbouring keys. It must also report a key that occurs more than once.
fn array<W: TestWord>(bench: &mut Bench, slot_count: u64, missing: Option<u64>) {
    let what = format!("{:?}: {slot_count} places, one in {missing:?} missing", W::WORD);
    let last = u64::MAX >> (64 - W::BITS);
    let min = last - (slot_count - 1);
    let has = |place: u64| missing.is_none_or(|every| place % every != 1);
    let mut keys: Vec<u64> = (0..slot_count).filter(|&p| has(p)).map(|p| min + p).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, bench.random.u64(..i as u64 + 1) as usize);
    }
    let rows = keys.len() as u64;
    // First the inserted keys, then the others: inside the range, before it, and beyond its end.
    keys.extend((0..slot_count).filter(|&p| !has(p)).map(|p| min + p));
    keys.extend([0, 1, min - 1, min / 2]);
    let words: Vec<W> = keys.iter().map(|&key| W::from_u64(key)).collect();
    let all = words.len();
    let columns = Columns { keys: bench.put(&words), values: 0, first: 0 };
    let control = bench.zeros::<Control>(1);
    let taken = bench.room::<u32>(slot_count.div_ceil(32) as usize);
    let slots = bench.room::<W>(slot_count as usize);
    let table = DeviceTable { slots, taken, slot_count, min, direct: 1, ..DeviceTable::default() };
    let insert = Insert { table, columns, rows, control, ..Insert::default() };
    bench.run::<W>(DeviceStage::ClearTable(ClearTable { table }));
    bench.run::<W>(DeviceStage::Insert(insert));
    assert_eq!(bench.get::<Control>(control, 1)[0].duplicates, 0, "{what}");
    let tile = bench.device.shape(W::WORD).probe_tile;
    let count = (all as u64).div_ceil(tile.into()) as u32;
    let expected: Vec<u8> = (0..all as u64).map(|row| u8::from(row < rows)).collect();
    // If all slots are taken, also without the bitmap.
    let bits = [Some(taken), missing.is_none().then_some(0)];
    for taken in bits.into_iter().flatten() {
        let (build_flags, probe_flags) = (bench.zeros::<u8>(all), bench.zeros::<u8>(all));
        let control = bench.zeros::<Control>(1);
        let output = Output { control, build_flags, probe_flags, ..Output::default() };
        let table = DeviceTable { taken, ..table };
        let rows = all as u64;
        let probe = Probe { table, columns, rows, count, tile, output, ..Probe::default() };
        bench.run::<W>(DeviceStage::Probe(Flavour::Exists, probe));
        assert!(bench.get::<u8>(probe_flags, all) == expected, "{what}: probe side");
        assert!(bench.get::<u8>(build_flags, all) == expected, "{what}: build side");
        let found = expected.iter().map(|&flag| u64::from(flag)).sum();
        in_order::<W>(bench, (table, columns), all as u64, found, &what);
    }
    bench.run::<W>(DeviceStage::Insert(Insert { rows: 1, ..insert }));
    assert_eq!(bench.get::<Control>(control, 1)[0].duplicates, 1, "{what}");
    bench.clear();
}

#[test]
fn arrays_find_their_keys() {
    everywhere(|bench| {
        let sizes: &[u64] = match (bench.large, reduced()) {
            (false, _) => &[1, 2, 32, 97],
            (true, true) => &[1, 33, 4099],
            (true, false) => &[1, 2, 33, 4099, 1 << 16, 1_000_003],
        };
        for &places in sizes {
            for missing in [None, Some(2), Some(50)] {
                array::<u32>(bench, places, missing);
                array::<u64>(bench, places, missing);
            }
        }
    });
}

#[test]
fn compact_tables_find_their_keys() {
    everywhere(|bench| {
        let sizes: &[u64] = match (bench.large, reduced()) {
            (false, _) => &[2, 3, 10, 97],
            (true, true) => &[2, 3, 97, 4099],
            (true, false) => &[2, 3, 10, 97, 4099, 1 << 16, 1_000_003, 12_345_679],
        };
        for &slots in sizes {
            for percent in [50, 95] {
                for groups in [false, true] {
                    compact::<u32>(bench, slots, percent, groups);
                    compact::<u64>(bench, slots, percent, groups);
                }
            }
        }
    });
}
