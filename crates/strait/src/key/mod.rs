//! stand-in
mod word;
pub(crate) use word::KeyWord;
