package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// newCacheCommand returns `nodens cache` and the commands below it.
func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Show or remove what the agent on this node has cached",
		Long: `Show what the agent on this node has cached for a name, remove names, or show the caches in numbers.
It asks the agent through its admin socket.`,
		Example: "  nodens cache get www.example.org\n  nodens cache flush example.org --subtree\n  nodens cache stats",
	}
	return newGroup(cmd, "get, flush and stats", newCacheGetCommand(), newCacheFlushCommand(), newCacheStatsCommand())
}

// newGroup makes cmd a command that only has others below it; names lists them for the error without one.
func newGroup(cmd *cobra.Command, names string, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cli.Usagef("give one of the commands %s; %s --help describes them", names, cmd.CommandPath())
		}
		return cli.UnknownCommand(cmd, args[0])
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // Args refuses every call
	cmd.AddCommand(commands...)
	return cmd
}

func newCacheGetCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:   "get NAME [TYPE]",
		Short: "Show what the agent on this node has cached for a name",
		Long: `Show what the caches of the agent on this node have for a name, of all types or of one: the rcode,
the number of records, the age, how long it stays, and for how long it may be served expired. With
the kernel path, it also shows the copies of answers in the kernel. The look-up does not count as a
use of the entries. It asks the agent through its admin socket.`,
		Example: "  nodens cache get www.example.org\n  nodens cache get www.example.org AAAA -o json",
		Args:    cli.Args(1, 2, "a name, and perhaps a record type"),
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		query := url.Values{"name": {args[0]}}
		if len(args) > 1 {
			query.Set("type", args[1])
		}
		return show(cmd, s, output, "/cache/entries", query, printCacheEntries)
	}
	return cmd
}

// cachedEntry is an entry with its cache.
type cachedEntry struct {
	report.CacheEntry
	cache *report.CachedName
}

// printCacheEntries writes what the caches and the kernel have for a name.
func printCacheEntries(out io.Writer, e *report.CacheEntries, wide bool) error {
	w := newAligner(out)
	columns := entryColumns(wide)
	table := cells(columns, []cachedEntry{})
	for i := range e.Caches {
		c := &e.Caches[i]
		list := make([]cachedEntry, len(c.Entries))
		for j, entry := range c.Entries {
			list[j] = cachedEntry{entry, c}
		}
		if len(list) > 0 {
			writeCells(w, append(table, cells(columns, list)[1:]...))
			table = nil // its first row has been written
		}
		printMore(w, c.MoreEntries, " entries")
	}
	switch {
	case len(e.Caches) == 0:
		fmt.Fprintf(w, "no cache covers %s\n", e.Name)
	case table != nil:
		fmt.Fprintf(w, "%s is not cached\n", e.Name)
	}
	printMore(w, e.More, " caches")
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range e.Caches {
		if d := e.Caches[i].DeniedBy; d != nil {
			fmt.Fprintf(out, "names below %s are denied with nxdomain_cut for %s; flushing %s removes that denial\n", d.Name, wholeSeconds(d.TTLSeconds), e.Name)
		}
	}
	if len(e.KernelCopies) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nIn the kernel:")
	return printTable(out, copyColumns, e.KernelCopies, e.MoreKernelCopies, " copies")
}

func entryColumns(wide bool) []column[cachedEntry] {
	type row = cachedEntry
	return slices.Concat(
		[]column[row]{
			{"TYPE", func(e *row) string { return e.Type }},
			{"BITS", func(e *row) string {
				var bits []string
				if e.DNSSEC {
					bits = append(bits, "DO")
				}
				if e.CheckingDisabled {
					bits = append(bits, "CD")
				}
				return cmp.Or(strings.Join(bits, ","), "-")
			}},
			{"REPLY", func(e *row) string { return e.Rcode }},
			{"RECORDS", func(e *row) string { return strconv.Itoa(e.Answers) }},
			{"AGE", func(e *row) string { return optionalSeconds(e.AgeSeconds, "") }},
			{"LEFT", func(e *row) string { return positiveSeconds(e.TTLSeconds, "expired") }},
			{"STALE", func(e *row) string { return positiveSeconds(e.StaleSeconds, "-") }},
			{"ZONES", func(e *row) string { return firstZones(e.cache.Zones) }},
		},
		when(wide,
			column[row]{"LINE", func(e *row) string { return strconv.Itoa(e.cache.Line) }},
			column[row]{"VIEW", func(e *row) string { return cmp.Or(e.cache.View, "-") }},
			column[row]{"CLASS", func(e *row) string { return e.Class }},
			column[row]{"KIND", func(e *row) string { return e.Kind }},
			column[row]{"SUBTREE", func(e *row) string { return strconv.FormatBool(e.Subtree) }},
			column[row]{"BYTES", func(e *row) string { return strconv.Itoa(e.Bytes) }},
		),
	)
}

var copyColumns = []column[report.KernelCopy]{
	{"TYPE", func(c *report.KernelCopy) string { return c.Type }},
	{"QUERIES", func(c *report.KernelCopy) string { return cmp.Or(strings.Join(c.Flags, ","), "-") }},
	{"REPLY", func(c *report.KernelCopy) string { return c.Rcode }},
	{"STATE", func(c *report.KernelCopy) string { return c.State }},
	{"LEFT", func(c *report.KernelCopy) string { return optionalSeconds(c.TTLSeconds, "") }},
	{"LAST GIVEN", func(c *report.KernelCopy) string { return optionalSeconds(c.IdleSeconds, " ago") }},
	{"LISTENER", func(c *report.KernelCopy) string { return c.Listener }},
}

func wholeSeconds(s float64) string { return fmt.Sprintf("%.0fs", s) }

// optionalSeconds returns s and suffix, "-" for null.
func optionalSeconds(s *float64, suffix string) string {
	if s == nil {
		return "-"
	}
	return wholeSeconds(*s) + suffix
}

// positiveSeconds returns s, or none if it is 0.
func positiveSeconds(s float64, none string) string {
	if s > 0 {
		return wholeSeconds(s)
	}
	return none
}

func newCacheStatsCommand() *cobra.Command {
	s := new(adminSocket)
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show the caches of the agent on this node in numbers",
		Long: `Show the caches of the agent on this node in numbers: entries and capacity of both kinds, the
share of hits, evictions, and expired answers that were served. It asks the agent through its admin
socket.`,
		Example: "  nodens cache stats\n  nodens cache stats -o json",
		Args:    cli.NoArgs,
	}
	s.register(cmd.Flags())
	output := cli.AddTableOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return show(cmd, s, output, "/cache", nil, printCacheStats)
	}
	return cmd
}

// printCacheStats writes a line for each cache.
func printCacheStats(out io.Writer, s *report.CacheStats, wide bool) error {
	if len(s.Caches) == 0 {
		_, err := fmt.Fprintln(out, "no cache directives")
		return err
	}
	type row = report.CacheCounts
	columns := slices.Concat(
		[]column[row]{
			{"ZONES", func(c *row) string { return firstZones(c.Zones) }},
			{"SUCCESS", func(c *row) string { return fmt.Sprintf("%d/%d", c.Success.Entries, c.Success.Capacity) }},
			{"DENIAL", func(c *row) string { return fmt.Sprintf("%d/%d", c.Denial.Entries, c.Denial.Capacity) }},
			{"BYTES", func(c *row) string { return strconv.Itoa(c.Bytes) }},
			{"HITS", func(c *row) string { return fmt.Sprint(c.Success.Hits + c.Denial.Hits) }},
			{"MISSES", func(c *row) string { return fmt.Sprint(c.Misses) }},
			{"HIT", func(c *row) string {
				hits := c.Success.Hits + c.Denial.Hits
				if hits+c.Misses == 0 {
					return "-"
				}
				return percent(float64(hits) / float64(hits+c.Misses))
			}},
			{"EVICTIONS", func(c *row) string { return fmt.Sprint(c.Success.Evictions + c.Denial.Evictions) }},
			{"STALE", func(c *row) string { return fmt.Sprint(c.Stale) }},
		},
		when(wide,
			column[row]{"LINE", func(c *row) string { return strconv.Itoa(c.Line) }},
			column[row]{"VIEW", func(c *row) string { return cmp.Or(c.View, "-") }},
			column[row]{"CUTS", func(c *row) string { return fmt.Sprint(c.Cuts) }},
			column[row]{"PREFETCHES", func(c *row) string { return fmt.Sprint(c.Prefetches) }},
		),
	)
	fmt.Fprintf(out, "%d of %d KiB are in use\n\n", s.Bytes>>10, s.BudgetBytes>>10)
	return printTable(out, columns, s.Caches, s.More, " caches")
}

func newCacheFlushCommand() *cobra.Command {
	s, subtree := new(adminSocket), false
	cmd := &cobra.Command{
		Use:   "flush NAME",
		Short: "Remove names from the cache of the agent on this node",
		Long: `Remove a name, or with --subtree all names below it as well, from the cache of the agent on this
node. It asks the agent through its admin socket. The name "." with --subtree removes everything.`,
		Example: "  nodens cache flush www.example.org\n  nodens cache flush example.org --subtree",
		Args:    cli.OneArg(`one name ("." means all names)`),
	}
	flags := cmd.Flags()
	s.register(flags)
	flags.StringVar(&s.path, "socket", "", "earlier name of --admin-socket")
	flags.Lookup("socket").Hidden = true
	flags.BoolVar(&subtree, "subtree", false, "all names below NAME as well")
	output := cli.AddOutput(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var removed struct {
			Entries int `json:"entries"`
		}
		query := url.Values{"name": {args[0]}, "subtree": {strconv.FormatBool(subtree)}}
		if err := s.ask(cmd.Context(), http.MethodPost, "/cache/flush", query, &removed); err != nil {
			return err
		}
		return output.Print(cmd.OutOrStdout(), removed, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%d entries removed\n", removed.Entries)
			return err
		})
	}
	return cmd
}

// newFlushCommand returns `nodens flush`, the name that `nodens cache flush` had first.
func newFlushCommand() *cobra.Command {
	cmd := newCacheFlushCommand()
	cmd.Hidden = true
	return cmd
}
