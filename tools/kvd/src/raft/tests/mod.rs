mod cluster;
mod moves;
mod network;
mod planted;
mod power;
mod suite;
mod time;
