package server

import "context"

// dns64 is the step behind all others: x has come to at; where that is a name without
// IPv6 addresses, they are made of its IPv4 ones.
func (rt *Routes) dns64(_ *exchange, at step) step { return at }

// dns64On is dns64 where it may wait.
func (rt *Routes) dns64On(context.Context, *exchange) error { return nil }
