mod cluster;
mod network;
mod planted;
mod power;
mod suite;
