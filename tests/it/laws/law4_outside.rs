//! Law 4: what comes from outside (paths, links, files, clocks, lengths) is not trusted by name.
