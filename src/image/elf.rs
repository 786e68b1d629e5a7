//! (to be merged)
pub fn same_file(_: &[u8], _: &[u8]) -> bool {
    false
}
