//! How the keys of a join are encoded, for plans and reports.

use std::fmt;

use arrow::datatypes::DataType;

use crate::word::Width;

/// How the key columns of both tables become key words. A [`Plan`](crate::Plan) has it.
///
/// ```
/// use arrow::datatypes::{DataType, Field, Schema};
/// use strait::{Join, KeyForm, Output};
///
/// let schema = Schema::new(vec![Field::new("id", DataType::Utf8, false)]);
/// let key = Join::inner().on("id").bind(Output::Rows, &schema, &schema)?.explain().key;
/// assert_eq!(key.form, KeyForm::Hashed);
/// assert_eq!(key.to_string(), "Utf8 hashed to 64 bits, matches verified");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyEncoding {
    /// The types of each key column in the left and in the right table.
    pub columns: Vec<[DataType; 2]>,
    /// How the columns become one key word.
    pub form: KeyForm,
    /// The bits of a key word: 32 or 64. On a GPU, key words may be wider than that: see
    /// [`Details::word_bits`](crate::Details::word_bits).
    pub word_bits: u32,
}

/// How the key columns of a row become one key word.
///
/// ```
/// use arrow::datatypes::{DataType, Field, Schema};
/// use strait::{Join, KeyForm, Output};
///
/// let schema = Schema::new(["a", "b"].map(|name| Field::new(name, DataType::Int32, false)).to_vec());
/// let form = |join: Join| {
///     Ok::<_, strait::Error>(join.bind(Output::Rows, &schema, &schema)?.explain().key.form)
/// };
/// assert_eq!(form(Join::inner().on("a"))?, KeyForm::Direct);
/// assert_eq!(form(Join::inner().on("a").on("b"))?, KeyForm::Packed);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyForm {
    /// The key word is the value of the only key column. Equal words are equal keys.
    Direct,
    /// The key word holds the values of all key columns. Equal words are equal keys.
    Packed,
    /// The key word is a hash of the key. Each match is verified on the key columns.
    Hashed,
    /// A test gives the same hash to all keys.
    Colliding,
}

impl KeyEncoding {
    /// Returns the encoding of a table whose first column already holds key words.
    pub(crate) fn of_words(width: Width) -> KeyEncoding {
        KeyEncoding { columns: Vec::new(), form: KeyForm::Direct, word_bits: width.bits() }
    }
}

impl fmt::Display for KeyEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, [left, right]) in self.columns.iter().enumerate() {
            let plus = if at > 0 { " + " } else { "" };
            write!(f, "{plus}{left}")?;
            if left != right {
                write!(f, " with {right}")?;
            }
        }
        let bits = self.word_bits;
        match self.form {
            KeyForm::Direct => write!(f, ", direct in {bits} bits"),
            KeyForm::Packed => write!(f, " packed in {bits} bits"),
            KeyForm::Hashed => write!(f, " hashed to {bits} bits, matches verified"),
            KeyForm::Colliding => f.write_str(" hashed to one word, matches verified"),
        }
    }
}
