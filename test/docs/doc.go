// Package docs holds what the documents say to what the code does. README.md is
// read as an operator reads it: its tables of flags and directives are compared
// with the program's own help and the parser's own list, each Corefile in it and
// each line of the support table is run through the real parser, and each link to
// a file of the tree leads somewhere. Whatever stands in a fence marked sh is
// meant to be run as it is; what needs a cluster is marked console instead.
package docs
