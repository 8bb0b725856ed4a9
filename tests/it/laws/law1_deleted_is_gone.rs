//! Law 1: what is deleted is gone when the store is idle, whatever the shape of the keys, the way
//! of deleting and the level.
