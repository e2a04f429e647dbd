// Package watch tests how the agent follows the API server: that every change
// of an object reaches the answers, after how long, and what the agent says
// while there is no API server to follow.
//
// The delays are printed and never judged: what they are depends on the
// machine. Judged is that each change is seen at all.
package watch
