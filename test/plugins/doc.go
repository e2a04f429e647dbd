// Package plugins compares the directives of nodens with the plugins of the CoreDNS that the tests are
// built against: each plugin is a directive, or is refused with what to do instead, and so is each Corefile
// in the documentation of the plugins. The sources of CoreDNS are read from Go's module cache.
package plugins
