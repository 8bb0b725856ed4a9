mod cluster;
mod moves;
mod network;
mod planted;
mod power;
mod reach;
mod suite;
mod time;
