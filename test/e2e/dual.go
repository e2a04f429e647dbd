package main

// dualStack is the part of that name.
func dualStack() []check { return nil }
