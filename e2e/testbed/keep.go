package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	corev1 "k8s.io/api/core/v1"
)

// Connections are TCP connections from a host or a pod to addresses, kept open during an event in the cluster.
type Connections []*connections

// connections are those to one address.
type connections struct {
	address netip.Addr
	cmd     *exec.Cmd
	stdin   io.Closer
	lines   *json.Decoder
	stderr  bytes.Buffer
}

// Survived counts the connections to each address with an answer before the event and after it.
type Survived []Survivors

// Survivors are those to one address.
type Survivors struct {
	Address netip.Addr
	probe.Kept
}

// Keep opens n connections to each address, and returns when each has had an answer.
func (b *Bed) Keep(ctx context.Context, host string, n int, addresses ...netip.Addr) (Connections, error) {
	var all Connections
	for _, a := range addresses {
		argv := keepArgs(b.prober(), n, Target(probe.TCP, a))
		c, err := keep(b.Cluster.Command(ctx, host, argv...), a)
		if err != nil {
			_, stopped := all.Stop()
			return nil, errors.Join(fmt.Errorf("keep connections to %s: %w", a, err), stopped)
		}
		all = append(all, c)
	}
	return all, nil
}

// KeepIn opens n connections from a pod to each server, and returns when each has had an answer.
func (b *Bed) KeepIn(ctx context.Context, pod *corev1.Pod, n int, servers ...netip.AddrPort) (Connections, error) {
	var all Connections
	for _, server := range servers {
		c, err := keep(b.inPod(ctx, pod, keepArgs(b.prober(), n, server.String())...), server.Addr())
		if err != nil {
			_, stopped := all.Stop()
			return nil, errors.Join(fmt.Errorf("keep connections of %s to %s: %w", pod.Name, server, err), stopped)
		}
		all = append(all, c)
	}
	return all, nil
}

// keepArgs returns the command that keeps connections to a target. Its timeout is long enough for a few retransmissions
// on a busy machine.
func keepArgs(prober string, n int, target string) []string {
	return []string{prober, "-keep", strconv.Itoa(n), "-timeout", "5s", target}
}

// keep starts a command that keeps connections.
func keep(cmd *exec.Cmd, a netip.Addr) (*connections, error) {
	c := &connections{address: a, cmd: cmd}
	c.cmd.Stderr = &c.stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.stdin, c.lines = stdin, json.NewDecoder(out)
	var opened probe.Kept
	if err := c.lines.Decode(&opened); err != nil {
		return nil, errors.Join(err, stdin.Close(), c.wait())
	}
	return c, nil
}

func (c *connections) wait() error {
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("run prober: %w: %s", err, c.stderr.String())
	}
	return nil
}

// Stop sends one more request on every connection and closes them.
func (c Connections) Stop() (Survived, error) {
	var out Survived
	var errs []error
	for _, one := range c {
		s := Survivors{Address: one.address}
		errs = append(errs, one.stdin.Close(), one.lines.Decode(&s.Kept), one.wait())
		out = append(out, s)
	}
	return out, errors.Join(errs...)
}

// Lost counts the connections without a second answer.
func (s Survived) Lost() int {
	lost := 0
	for _, one := range s {
		lost += one.Opened - one.Answered
	}
	return lost
}

// String returns "100 of 100 connections over IPv4, 37 of 100 over IPv6 survived",
// with the errors of the others.
func (s Survived) String() string {
	var parts []string
	errs := map[string]int{}
	for i, one := range s {
		family, unit := "IPv4", ""
		if one.Address.Is6() {
			family = "IPv6"
		}
		if i == 0 {
			unit = "connections "
		}
		parts = append(parts, fmt.Sprintf("%d of %d %sover %s", one.Answered, one.Opened, unit, family))
		for cause, n := range one.Errors {
			errs[cause] += n
		}
	}
	text := strings.Join(parts, ", ") + " survived"
	if len(errs) > 0 {
		text += fmt.Sprintf(" (%v)", errs)
	}
	return text
}
