package main

// plotted is a drawing in a file.
type plotted struct{ File, Title string }
