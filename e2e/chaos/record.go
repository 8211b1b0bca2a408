package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// What is the kind of an entry, and names the fields that it has.
type What string

// Kinds of entries.
const (
	// Host: the link of a node has a MAC. Node, Link, MAC.
	Host What = "host"
	// Target: a listener asks for an address of a Service all the time. By, Address, Service.
	Target What = "target"
	// Control: a listener asks for an address that another machine always has. By, Address.
	Control What = "control"
	// Begins, Began: a fault was about to be injected, and had been. Fault.
	Begins What = "begins"
	Began  What = "began"
	// Ended: the fault had been repaired. Fault.
	Ended What = "ended"
	// Ready: what the fault had stopped on its node worked again. Fault.
	Ready What = "ready"
	// Answer: a listener received a claim of an address by ARP or NDP. By, Address, MAC.
	Answer What = "answer"
	// Fetch: a client asked for an answer of an address. By, Address, Took, and Node and Pod or Error.
	Fetch What = "fetch"
	// Service: a Service had these addresses. Service, Addresses.
	Service What = "service"
	// Stop: the listeners and clients stopped.
	Stop What = "stop"
)

// Entry is one line of a record. At is the time since the start of the run.
type Entry struct {
	At   time.Duration `json:"at"`
	What What          `json:"what"`
	// Fault is an index in the schedule.
	Fault int    `json:"fault,omitempty"`
	By    string `json:"by,omitempty"`
	// Address is absent as its zero value.
	Address   netip.Addr    `json:"address,omitzero"`
	MAC       string        `json:"mac,omitempty"`
	Node      string        `json:"node,omitempty"`
	Link      string        `json:"link,omitempty"`
	Pod       string        `json:"pod,omitempty"`
	Took      time.Duration `json:"took,omitempty"`
	Error     string        `json:"error,omitempty"`
	Service   string        `json:"service,omitempty"`
	Addresses []netip.Addr  `json:"addresses,omitempty"`
}

// Record is what was seen in a run, in any order.
type Record []Entry

// Write writes the record as lines of JSON.
func (r Record) Write(w io.Writer) error {
	buffered := bufio.NewWriter(w)
	lines := json.NewEncoder(buffered)
	for _, e := range r {
		if err := lines.Encode(e); err != nil {
			return fmt.Errorf("write record: %w", err)
		}
	}
	return buffered.Flush()
}

// ReadRecord reads lines of JSON.
func ReadRecord(from io.Reader) (Record, error) {
	var r Record
	for lines := json.NewDecoder(bufio.NewReader(from)); ; {
		var e Entry
		err := lines.Decode(&e)
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read record, line %d: %w", len(r)+1, err)
		}
		r = append(r, e)
	}
}
