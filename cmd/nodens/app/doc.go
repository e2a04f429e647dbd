// Package app is the agent as an application. It is the only package that knows all parts:
// it builds them from the Corefile, joins them to the server, sets up the node's network
// around them, reloads them, hands them over to the next agent and stops them.
package app
