// Package compat holds what one agent leaves to another against an earlier version of
// itself: the hand-over, the saved cache and the saved view of the cluster, from the earlier
// agent to this one (an upgrade) and from this one to the earlier (a rollback).
//
// The earlier agent is that of the commit in testdata/base, which is built from the
// repository's history and kept (see package peer). The commit moves forward with each
// release, so that neighbouring releases can follow each other in either direction.
package compat
