package server

import "context"

// rewritten asks x's question, or what the zone's rules make of it.
func (rt *Routes) rewritten(x *exchange) step { return rt.find(x) }

// rewrittenOn is rewritten where it may wait.
func (rt *Routes) rewrittenOn(context.Context, *exchange) error { return nil }
