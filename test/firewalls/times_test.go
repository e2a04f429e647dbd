package firewalls

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// foreignRules is the number of a large node's nat rules.
const foreignRules = 5000

// TestTimes logs how long each back end takes to set the node up, what a check costs, and how long the pod has no
// answer after another program has deleted the agent's addresses on a node with many rules. Nothing but answers is
// required: the times are for a reader.
func TestTimes(t *testing.T) {
	if !soak.Enabled() {
		t.Skip("nobody reads the times")
	}
	agent := agentPath(t)
	for _, e := range BackEnds()[3:] {
		t.Run(e.Name, func(t *testing.T) { testTimes(t, newBed(t, agent, plainCell(e))) })
	}
}

func testTimes(t *testing.T, b *Bed) {
	begin := time.Now()
	p, err := b.startAgent()
	check.NoError(t, err)
	start := time.Since(begin)
	small := checkCost(t, p.PID())
	if _, err := b.host.sh(t.Context(), manyRules(b.Proxy)); err != nil {
		t.Fatal(err)
	}
	large := checkCost(t, p.PID())
	silence := b.silence(t)
	p.Kill()
	begin = time.Now()
	if err := b.cleanUp(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("start %v; a check each second: %v of CPU time per second, with %d more rules %v; addresses deleted: no answer for %v; cleanup %v",
		start.Round(time.Millisecond), small, foreignRules, large, silence.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
}

// manyRules returns the script that adds rules of others to nat.
func manyRules(proxy string) string {
	tool := "iptables-nft"
	if proxy == testbed.ProxyIptablesLegacy {
		tool = proxy
	}
	return fmt.Sprintf(`(echo "*nat"; echo ":FOREIGN - [0:0]"
for i in $(seq %d); do echo "-A FOREIGN -d 10.97.$((i/256)).$((i%%256)) -p tcp -m tcp --dport 80 -j RETURN"; done; echo COMMIT) | %s-restore -w 5 --noflush`, foreignRules, tool)
}

// silence deletes the agent's addresses and returns for how long the pod gets no answer.
func (b *Bed) silence(t *testing.T) time.Duration {
	t.Helper()
	j := job(4*time.Second, testbed.Local4)
	j.Rate, j.OneShots = 1000, 0
	c, err := b.StartLoad(j, b.Client)
	check.NoError(t, err)
	time.Sleep(time.Second)
	check.NoError(t, b.sh(b.Node, removeAddresses))
	r, err := c.Wait()
	check.NoError(t, err)
	return r.LongestAgentAbsence
}

// checkCost returns the processor time of a process and of the programs that it has run, per second.
func checkCost(t *testing.T, pid int) time.Duration {
	t.Helper()
	const seconds = 10
	before := cpuTime(t, pid)
	time.Sleep(seconds * time.Second)
	return (cpuTime(t, pid) - before) / seconds
}

// cpuTime reads proc_pid_stat(5): the fields utime, stime, cutime and cstime, in hundredths of a second.
func cpuTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	for _, f := range fields[11:15] {
		n, err := strconv.Atoi(f)
		check.NoError(t, err)
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}
