// Package docs holds the documents to what the code does.
//
// Of every Markdown file of the tree it checks the links and their anchors, the languages of
// fences, the phrases that pages avoid, and that nodens' flags have two dashes. Lines in a fence
// marked sh need neither a cluster nor a replaced word. A fence marked console is run and its output
// compared, unless the comment before it says why not. Corefiles run through the real parser.
//
// The reference pages are compared with their source: metrics with the table of
// cmd/nodens/app, alerts with rules.yaml, log lines and bounds with the sources. What is
// generated is written by go test ./test/docs -update.
package docs
