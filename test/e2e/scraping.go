package main

// scraping is the part of that name.
func scraping() []check { return nil }
