//! Files from elsewhere: downloads, caches, locks.
