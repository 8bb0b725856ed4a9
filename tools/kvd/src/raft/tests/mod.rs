mod cluster;
mod power;
mod suite;
