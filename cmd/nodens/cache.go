package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

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
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("give one of the commands get, flush and stats; %s --help describes them", cmd.CommandPath())
			}
			return cli.UnknownCommand(cmd, args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // Args refuses every call
	}
	flush := newFlushCommand()
	flush.Example = "  nodens cache flush www.example.org\n  nodens cache flush example.org --subtree"
	cmd.AddCommand(newCacheGetCommand(), flush, newCacheStatsCommand())
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
		return runCacheGet(cmd.Context(), s, query, output, cmd.OutOrStdout())
	}
	return cmd
}

func runCacheGet(ctx context.Context, socket *adminSocket, query url.Values, output *cli.Output, stdout io.Writer) error {
	var e report.CacheEntries
	if err := socket.ask(ctx, http.MethodGet, "/cache/entries", query, &e); err != nil {
		return err
	}
	return output.Print(stdout, e, func(w io.Writer) error { return printCacheEntries(w, &e, output.Wide()) })
}

// printCacheEntries writes what the caches and the kernel have for a name.
func printCacheEntries(out io.Writer, e *report.CacheEntries, wide bool) error {
	if err := printEntryTable(out, e, wide); err != nil {
		return err
	}
	for i := range e.Caches {
		if d := e.Caches[i].DeniedBy; d != nil {
			fmt.Fprintf(out, "names below %s are denied with nxdomain_cut for %s; flushing %s removes that denial\n", d.Name, wholeSeconds(d.TTLSeconds), e.Name)
		}
	}
	return printKernelCopies(out, e)
}

// printEntryTable writes the entries of all caches as one table, or that there are none.
func printEntryTable(out io.Writer, e *report.CacheEntries, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	columns := []string{"TYPE", "BITS", "REPLY", "RECORDS", "AGE", "LEFT", "STALE", "ZONES"}
	if wide {
		columns = append(columns, "LINE", "VIEW", "CLASS", "KIND", "SUBTREE", "BYTES")
	}
	n := 0
	for i := range e.Caches {
		c := &e.Caches[i]
		for j := range c.Entries {
			if n++; n == 1 {
				fmt.Fprintln(w, strings.Join(columns, "\t"))
			}
			fmt.Fprintln(w, strings.Join(entryRow(&c.Entries[j], &c.Cache, wide), "\t"))
		}
		if c.MoreEntries > 0 {
			fmt.Fprintf(w, "and %d more entries\n", c.MoreEntries)
		}
	}
	switch {
	case len(e.Caches) == 0:
		fmt.Fprintf(w, "no cache covers %s\n", e.Name)
	case n == 0:
		fmt.Fprintf(w, "%s is not cached\n", e.Name)
	}
	if e.More > 0 {
		fmt.Fprintf(w, "and %d more caches\n", e.More)
	}
	return w.Flush()
}

// printKernelCopies writes a line for each copy in the kernel, if there are any.
func printKernelCopies(out io.Writer, e *report.CacheEntries) error {
	if len(e.KernelCopies) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nIn the kernel:\nTYPE\tQUERIES\tREPLY\tSTATE\tLEFT\tLAST GIVEN\tLISTENER")
	for i := range e.KernelCopies {
		c := &e.KernelCopies[i]
		left, given := "-", "-"
		if c.TTLSeconds != nil {
			left = wholeSeconds(*c.TTLSeconds)
		}
		if c.IdleSeconds != nil {
			given = wholeSeconds(*c.IdleSeconds) + " ago"
		}
		fmt.Fprintln(w, strings.Join([]string{c.Type, cmp.Or(strings.Join(c.Flags, ","), "-"), c.Rcode, c.State, left, given, c.Listener}, "\t"))
	}
	if e.MoreKernelCopies > 0 {
		fmt.Fprintf(w, "and %d more copies\n", e.MoreKernelCopies)
	}
	return w.Flush()
}

// entryRow returns the columns of one entry.
func entryRow(e *report.CacheEntry, c *report.Cache, wide bool) []string {
	var bits []string
	if e.DNSSEC {
		bits = append(bits, "DO")
	}
	if e.CheckingDisabled {
		bits = append(bits, "CD")
	}
	age, left, stale := "-", "expired", "-"
	if e.AgeSeconds != nil {
		age = wholeSeconds(*e.AgeSeconds)
	}
	if e.TTLSeconds > 0 {
		left = wholeSeconds(e.TTLSeconds)
	}
	if e.StaleSeconds > 0 {
		stale = wholeSeconds(e.StaleSeconds)
	}
	row := []string{e.Type, cmp.Or(strings.Join(bits, ","), "-"), e.Rcode, strconv.Itoa(e.Answers), age, left, stale, firstZones(c.Zones)}
	if wide {
		row = append(row, strconv.Itoa(c.Line), cmp.Or(c.View, "-"), e.Class, e.Kind, strconv.FormatBool(e.Subtree), strconv.Itoa(e.Bytes))
	}
	return row
}

func wholeSeconds(s float64) string { return fmt.Sprintf("%.0fs", s) }

// firstZones returns the first zones of a list, and how many others there are.
func firstZones(zones []string) string {
	const few = 3
	text := strings.Join(zones[:min(few, len(zones))], ",")
	if len(zones) > few {
		text += fmt.Sprintf(",+%d", len(zones)-few)
	}
	return text
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
		return runCacheStats(cmd.Context(), s, output, cmd.OutOrStdout())
	}
	return cmd
}

func runCacheStats(ctx context.Context, socket *adminSocket, output *cli.Output, stdout io.Writer) error {
	var s report.CacheStats
	if err := socket.ask(ctx, http.MethodGet, "/cache", nil, &s); err != nil {
		return err
	}
	return output.Print(stdout, s, func(w io.Writer) error { return printCacheStats(w, &s, output.Wide()) })
}

// printCacheStats writes a line for each cache.
func printCacheStats(out io.Writer, s *report.CacheStats, wide bool) error {
	if len(s.Caches) == 0 {
		_, err := fmt.Fprintln(out, "no cache directives")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	columns := []string{"ZONES", "SUCCESS", "DENIAL", "BYTES", "HITS", "MISSES", "HIT", "EVICTIONS", "STALE"}
	if wide {
		columns = append(columns, "LINE", "VIEW", "CUTS", "PREFETCHES")
	}
	fmt.Fprintf(w, "%d of %d KiB are in use\n\n%s\n", s.Bytes>>10, s.BudgetBytes>>10, strings.Join(columns, "\t"))
	for i := range s.Caches {
		c := &s.Caches[i]
		hits, share := c.Success.Hits+c.Denial.Hits, "-"
		if all := hits + c.Misses; all > 0 {
			share = percent(float64(hits) / float64(all))
		}
		row := []string{
			firstZones(c.Zones), fmt.Sprintf("%d/%d", c.Success.Entries, c.Success.Capacity), fmt.Sprintf("%d/%d", c.Denial.Entries, c.Denial.Capacity),
			strconv.Itoa(c.Bytes), fmt.Sprint(hits), fmt.Sprint(c.Misses), share, fmt.Sprint(c.Success.Evictions + c.Denial.Evictions), fmt.Sprint(c.Stale),
		}
		if wide {
			row = append(row, strconv.Itoa(c.Line), cmp.Or(c.View, "-"), fmt.Sprint(c.Cuts), fmt.Sprint(c.Prefetches))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if s.More > 0 {
		fmt.Fprintf(w, "and %d more caches\n", s.More)
	}
	return w.Flush()
}
