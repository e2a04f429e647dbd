// Package watch tests how the agent follows the API server: that every change of an object reaches
// the answers, and what the agent answers while no API server is reachable.
//
// The tests print how long changes take and do not judge it, because that depends on the machine.
package watch
