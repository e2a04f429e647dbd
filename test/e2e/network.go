package main

// networkPart is the name of the part that compares pod networks, and usualOtherNetwork the
// network that it runs on if none is chosen.
const (
	networkPart       = "network"
	usualOtherNetwork = "ptp"
)
