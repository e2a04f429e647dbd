package server

// template is the step of answers that are made of a pattern; ok is false if it leaves
// the query to those behind it.
func (z *Zone) template(*exchange) (at step, ok bool) { return done, false }
