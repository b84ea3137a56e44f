//! Adds up contiguous integers.

use arrow::datatypes::DataType;

use crate::processor::on_this_processor;

/// Returns the sum of `len` integers from `start` on; `None` for other types.
///
/// # Safety
/// There are `len` values of that type.
pub(super) unsafe fn of_run(data_type: &DataType, start: *const u8, len: usize) -> Option<i128> {
    on_this_processor!(add(data_type, start, len) where
        [](data_type: &DataType, start: *const u8, len: usize) -> Option<i128>)
}

#[inline(always)]
fn add(data_type: &DataType, start: *const u8, len: usize) -> Option<i128> {
    // SAFETY: guaranteed by the caller of `of_run`, in all cases.
    unsafe {
        Some(match data_type {
            DataType::Int8 => narrow(start, len, |v: i8| v.into()),
            DataType::Int16 => narrow(start, len, |v: i16| v.into()),
            DataType::Int32 => narrow(start, len, |v: i32| v.into()),
            DataType::UInt8 => narrow(start, len, |v: u8| v.into()),
            DataType::UInt16 => narrow(start, len, |v: u16| v.into()),
            DataType::UInt32 => narrow(start, len, |v: u32| v.into()),
            // Flipping the sign bit adds 2^63 to each value.
            DataType::Int64 => wide(start, len, 1 << 63) - ((len as i128) << 63),
            DataType::UInt64 => wide(start, len, 0),
            _ => return None,
        })
    }
}

/// The number of values whose sum is certain to fit 64 bits.
const AT_ONCE: usize = 1 << 30;

/// # Safety
/// There are `len` values of type `T`.
#[inline(always)]
unsafe fn narrow<T: Copy>(start: *const u8, len: usize, value: impl Fn(T) -> i64) -> i128 {
    // SAFETY: guaranteed by the caller.
    let at = |i: usize| value(unsafe { start.cast::<T>().add(i).read_unaligned() });
    let parts = (0..len).step_by(AT_ONCE);
    parts.map(|from| i128::from((from..len.min(from + AT_ONCE)).map(at).sum::<i64>())).sum()
}

/// Returns the sum of unsigned 64-bit values, after flipping the bits of `turned`. It adds up the upper and
/// lower halves separately. That needs no carry between them, so several values are added at a time.
///
/// # Safety
/// There are `len` values.
#[inline(always)]
unsafe fn wide(start: *const u8, len: usize, turned: u64) -> i128 {
    // SAFETY: guaranteed by the caller.
    let at = |i: usize| unsafe { start.cast::<u64>().add(i).read_unaligned() } ^ turned;
    let mut total = 0;
    for from in (0..len).step_by(AT_ONCE) {
        let (mut low, mut high) = (0u64, 0u64);
        for i in from..len.min(from + AT_ONCE) {
            let value = at(i);
            low += value & 0xffff_ffff;
            high += value >> 32;
        }
        total += (i128::from(high) << 32) + i128::from(low);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Copy + Into<i128>>(data_type: &DataType, values: &[T]) {
        let expected: i128 = values.iter().map(|&v| v.into()).sum();
        // SAFETY: the values have this type.
        let sum = unsafe { of_run(data_type, values.as_ptr().cast(), values.len()) };
        assert_eq!(sum, Some(expected), "{data_type}");
    }

    #[test]
    fn extremes_do_not_overflow() {
        for len in [0, 1, 2, 1000] {
            check(&DataType::Int64, &vec![i64::MIN; len]);
            check(&DataType::Int64, &vec![i64::MAX; len]);
            check(&DataType::UInt64, &vec![u64::MAX; len]);
            check(&DataType::Int32, &vec![i32::MIN; len]);
            check(&DataType::UInt8, &vec![u8::MAX; len]);
        }
        check(&DataType::Int64, &[i64::MIN, -1, 0, 1, i64::MAX, 7]);
        check(&DataType::Int16, &[i16::MIN, -1, 0, 1, i16::MAX]);
        // SAFETY: no values are read.
        assert_eq!(unsafe { of_run(&DataType::Float64, std::ptr::null(), 0) }, None);
    }
}
