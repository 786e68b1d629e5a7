//! The hashed call-stack trie.
