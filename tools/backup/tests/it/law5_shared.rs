//! Law 5: where several stores share a repository, none harms another.
