// Package compat tests upgrades and rollbacks between this agent and an earlier one: the hand-over,
// the saved cache and the saved view of the cluster, in both directions.
//
// The earlier agent is built from the commit in testdata/base (see package peer). The commit moves
// forward with each release, so that neighbouring releases can follow each other in either
// direction.
package compat
