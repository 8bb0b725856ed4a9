mod cluster;
mod network;
mod power;
mod suite;
