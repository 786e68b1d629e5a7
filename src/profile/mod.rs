//! The profile: trie + images + losses + metadata.
