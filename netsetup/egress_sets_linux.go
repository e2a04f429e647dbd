package netsetup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/dnspolicy"
)

// EgressSets are the sets of DNSPolicies in a table of nf_tables, where an operator's chains can use them: set names have no meaning outside
// of their table. A policy NAMESPACE/NAME has four: to4/NAMESPACE/NAME and to6/… have the addresses of the names that it
// allows, pods4/… and pods6/… those of the pods that it binds.
//
// It implements [dnspolicy.PacketFilter]. Chains and rules in the table are the operator's, and stay. The zero value is ready, and
// safe for concurrent use.
type EgressSets struct {
	mu      sync.Mutex
	socket  *nl.NetlinkSocket       // nil: it is not open
	handles map[string]uint64       // of the sets at the last Sync
	pods    map[string][]netip.Addr // that the sets have
}

// EgressTable is the name of the table, in family inet.
const EgressTable = "nodens-egress"

const (
	// egressKernelSize bounds a set in the kernel. It may still have the addresses that agents have added which are gone: if it is full,
	// the kernel refuses a whole transaction, with the addresses for other sets.
	egressKernelSize = 8 * dnspolicy.MaxEgressAddrs
	// maxEgressMessage is how many addresses a message has: an attribute has at most 64 KiB.
	maxEgressMessage = 512
	// setHandle is NFTA_SET_HANDLE.
	setHandle = 16
	// nonRecursive is NLM_F_NONREC: a table is only deleted if it is empty.
	nonRecursive = 0x100
)

// egressPrefixes begin the names of the sets of a policy.
var egressPrefixes = []string{"to4/", "to6/", "pods4/", "pods6/"}

// Sync implements [dnspolicy.PacketFilter].
func (e *EgressSets) Sync(pods map[string][]netip.Addr, prune bool) (renewed []string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	handles, err := e.create(pods)
	if err != nil {
		return nil, err
	}
	for policy, addrs := range pods {
		isNew := slices.ContainsFunc(egressPrefixes, func(prefix string) bool { return e.handles[prefix+policy] != handles[prefix+policy] })
		if isNew {
			renewed = append(renewed, policy)
		}
		if !isNew && slices.Equal(e.pods[policy], addrs) {
			continue
		}
		if err := e.send(podMessages(policy, addrs)); err != nil {
			e.handles = nil // so that the next call tries again
			return renewed, fmt.Errorf("writing the pods of an egress set: %w", err)
		}
	}
	e.handles, e.pods = handles, maps.Clone(pods)
	if prune {
		_, err = e.prune(handles, pods)
	}
	return renewed, err
}

// create makes the sets of these policies that are missing. It returns the handles of all sets.
func (e *EgressSets) create(pods map[string][]netip.Addr) (handles map[string]uint64, err error) {
	if handles, err = listEgressSets(); err != nil {
		return nil, err
	}
	var missing [][]byte
	for policy := range pods {
		for _, prefix := range egressPrefixes {
			if handles[prefix+policy] == 0 {
				missing = append(missing, newEgressSet(prefix, policy, len(missing)))
			}
		}
	}
	if len(missing) == 0 {
		return handles, nil
	}
	table := nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, attrText(unix.NFTA_TABLE_NAME, EgressTable))
	if err := e.send(append([][]byte{table}, missing...)); err != nil {
		return nil, fmt.Errorf("making egress sets: %w", err)
	}
	return listEgressSets()
}

// prune removes the sets of policies that are not in pods, and the table if nothing is left in it. Sets that rules use are emptied: they are counted.
func (e *EgressSets) prune(handles map[string]uint64, pods map[string][]netip.Addr) (used int, err error) {
	gone := 0
	for name := range handles {
		prefix, policy, _ := strings.Cut(name, "/")
		if _, ok := pods[policy]; ok || !slices.Contains(egressPrefixes, prefix+"/") {
			continue
		}
		gone++
		stays, failed := e.remove(name)
		if stays {
			used++
		}
		err = errors.Join(err, failed)
	}
	if gone > 0 && len(pods) == 0 {
		failed := e.send([][]byte{nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_DELTABLE, nonRecursive, attrText(unix.NFTA_TABLE_NAME, EgressTable))})
		if failed != nil && !isAny(failed, unix.EBUSY, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("removing table %s: %w", EgressTable, failed))
		}
	}
	return used, err
}

// remove removes a set. If rules use it, it is emptied, and stays.
func (e *EgressSets) remove(name string) (stays bool, err error) {
	err = e.send([][]byte{nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_DELSET, 0, attrText(unix.NFTA_SET_TABLE, EgressTable), attrText(unix.NFTA_SET_NAME, name))})
	if stays = errors.Is(err, unix.EBUSY); stays {
		err = e.send([][]byte{flushMessage(name)})
	}
	if err != nil && !errors.Is(err, dnspolicy.ErrNoSet) {
		return stays, fmt.Errorf("removing egress set %s: %w", name, err)
	}
	return stays, nil
}

// Add implements [dnspolicy.PacketFilter]. Before Linux 6.12 the kernel leaves the timeout of an element as it is, so that it has to be
// removed in the same transaction; and what is removed must be there.
func (e *EgressSets) Add(list []dnspolicy.Element) error {
	bySet := make(map[string][]*nl.RtAttr)
	for _, a := range list {
		name := "to4/" + a.Policy
		if a.Addr.Is6() {
			name = "to6/" + a.Policy
		}
		timeout := nl.NewRtAttr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(max(1, a.Timeout.Milliseconds())))) //nolint:gosec // at least 1
		bySet[name] = append(bySet[name], attrNest(unix.NFTA_LIST_ELEM, addrKey(a.Addr), timeout))
	}
	var batch [][]byte
	for name, elements := range bySet {
		for part := range slices.Chunk(elements, maxEgressMessage) {
			for _, kind := range []int{unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_NEWSETELEM} {
				batch = append(batch, elementMessage(kind, name, part))
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.send(batch)
	if errors.Is(err, dnspolicy.ErrNoSet) { // an element may have expired within the transaction
		err = e.send(batch)
	}
	if err != nil {
		return fmt.Errorf("adding to egress sets: %w", err)
	}
	return nil
}

// send sends a batch on the socket that e keeps. After an error, of which the kernel may report several, the next one gets another socket.
func (e *EgressSets) send(batch [][]byte) (err error) {
	if len(batch) == 0 {
		return nil
	}
	if e.socket == nil {
		if e.socket, err = openNetfilter(); err != nil {
			return err
		}
	}
	if err = sendBatch(e.socket, batch); err == nil {
		return nil
	}
	e.socket.Close()
	e.socket = nil
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %w", dnspolicy.ErrNoSet, err)
	case errors.Is(err, unix.ENFILE): // whose text speaks of open files
		return errEgressSetFull
	}
	return err
}

// errEgressSetFull says that a set has egressKernelSize addresses.
var errEgressSetFull = fmt.Errorf("a set has %d addresses, with those of former agents", egressKernelSize)

// listEgressSets returns the handles of the sets in the table, by name. A kernel without nf_tables has none.
func listEgressSets() (map[string]uint64, error) {
	handles := make(map[string]uint64)
	_, err := request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(_ byte, body []byte) (struct{}, bool) {
		if handle := attrValue(body, 0, setHandle); len(handle) == 8 && attrName(body, 0, unix.NFTA_SET_TABLE) == EgressTable {
			handles[attrName(body, 0, unix.NFTA_SET_NAME)] = binary.BigEndian.Uint64(handle)
		}
		return struct{}{}, false
	}, attrText(unix.NFTA_SET_TABLE, EgressTable))
	if isAny(err, unix.ENOENT, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return handles, nftError("listing egress sets", err)
}

// newEgressSet returns the message that makes a set. id is another number for each set of a batch.
func newEgressSet(prefix, policy string, id int) []byte {
	keyType, size := uint32(7), uint32(4) // nft's ipv4_addr
	if strings.HasSuffix(prefix, "6/") {
		keyType, size = 8, 16 // ipv6_addr
	}
	attrs := []*nl.RtAttr{
		attrText(unix.NFTA_SET_TABLE, EgressTable), attrText(unix.NFTA_SET_NAME, prefix+policy),
		attrNumber(unix.NFTA_SET_KEY_TYPE, keyType), attrNumber(unix.NFTA_SET_KEY_LEN, size),
		attrNumber(unix.NFTA_SET_ID, uint32(id+1)), //nolint:gosec // some hundred
	}
	if strings.HasPrefix(prefix, "to") {
		attrs = append(attrs, attrNumber(unix.NFTA_SET_FLAGS, unix.NFT_SET_TIMEOUT),
			attrNest(unix.NFTA_SET_DESC, attrNumber(unix.NFTA_SET_DESC_SIZE, egressKernelSize)))
	}
	return nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrs...)
}

// podMessages returns the messages that make the sets of a policy's pods those with these addresses.
func podMessages(policy string, addrs []netip.Addr) (batch [][]byte) {
	batch = [][]byte{flushMessage("pods4/" + policy), flushMessage("pods6/" + policy)}
	for _, a := range addrs {
		name := "pods4/" + policy
		if a.Is6() {
			name = "pods6/" + policy
		}
		batch = append(batch, elementMessage(unix.NFT_MSG_NEWSETELEM, name, []*nl.RtAttr{attrNest(unix.NFTA_LIST_ELEM, addrKey(a))}))
	}
	return batch
}

// flushMessage returns the message that empties a set.
func flushMessage(name string) []byte {
	return nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_DELSETELEM, 0, attrText(unix.NFTA_SET_ELEM_LIST_TABLE, EgressTable), attrText(unix.NFTA_SET_ELEM_LIST_SET, name))
}

// elementMessage returns a message about elements of a set.
func elementMessage(kind int, name string, elements []*nl.RtAttr) []byte {
	return nftMessage(unix.NFPROTO_INET, kind, unix.NLM_F_CREATE,
		attrText(unix.NFTA_SET_ELEM_LIST_TABLE, EgressTable), attrText(unix.NFTA_SET_ELEM_LIST_SET, name),
		attrNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, elements...))
}

// addrKey returns the key of an element.
func addrKey(a netip.Addr) *nl.RtAttr {
	return attrNest(unix.NFTA_SET_ELEM_KEY, nl.NewRtAttr(unix.NFTA_DATA_VALUE, a.AsSlice()))
}
