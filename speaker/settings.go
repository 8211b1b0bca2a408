package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/node"
)

// Bounds of --heartbeat-interval: a shorter interval mistakes the delay of a thread for a death, a longer one makes
// failover slow.
const (
	minInterval = 10 * time.Millisecond
	maxInterval = time.Second
)

// Bounds of --announce-rate: a lower rate has no room for the periodic announcements of many addresses.
const (
	minRate = 100
	maxRate = 100_000
)

// linkPrefix is a value of --pod-link and --exclude-link. A whole name has at most 15 octets.
var linkPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,14}$`)

// settings are the flags of the process.
type settings struct {
	daemon.Settings
	node                       node.Settings
	nodeName                   string
	membersPort, heartbeatPort uint
	heartbeatInterval          time.Duration
	realtime                   bool
	kubeProxyLivez             string
	excludedLinks              []string
	announceRate               int
	announceByRequest          bool
}

// dataPathTime is how long another data path than kube-proxy's has after a boot, from the first answer of a pod on
// another node. Cilium 1.20 in place of kube-proxy needed 6 s more until it served what comes from outside.
const dataPathTime = 15 * time.Second

// settleTime is how long the data path has after the first answer of a pod on another node.
func (s *settings) settleTime() time.Duration {
	if s.node.Options.OtherDataPath {
		return dataPathTime
	}
	return 0
}

// members returns the settings of the membership. Program is the heartbeat process.
func (s *settings) members(program string) node.MembersConfig {
	return node.MembersConfig{
		Secret:        lb.Key{Namespace: s.Namespace, Name: s.MembersSecret},
		Port:          uint16(s.membersPort),
		HeartbeatPort: uint16(s.heartbeatPort),
		Interval:      s.heartbeatInterval,
		Ordinary:      !s.realtime,
		Command:       []string{program},
	}
}

// parse reads the flags. It returns an error with a sentence for a value that cannot work.
func (s *settings) parse(args []string) error {
	f := flag.NewFlagSet("speaker", flag.ContinueOnError)
	s.define(f)
	if err := s.Parse(f, args); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}

	if s.node.Options.OtherDataPath {
		s.kubeProxyLivez, s.node.Relay = "", false
	}
	return nil
}

// define defines the flags.
func (s *settings) define(f *flag.FlagSet) {
	s.Define(f, "127.0.0.1:9218")
	s.node.Options.Define(f)
	s.node.Options.ForSpeaker = true
	f.StringVar(
		&s.nodeName,
		"node-name",
		os.Getenv("NODE_NAME"),
		"`name` of the node that this speaker runs on; by default the environment variable NODE_NAME",
	)
	f.UintVar(&s.membersPort, "members-port", 7947, "TCP and UDP `port` of the speakers' membership")
	f.Func(
		"pod-link",
		"`prefix` of the names of links that lead to pods of this node and nowhere else, beside those that network "+
			"plugins use; may be repeated",
		func(text string) error { return addPrefix(&s.node.PodLinks, text) },
	)
	f.Func(
		"exclude-link",
		"`prefix` of the names of links that announce nothing unless an L2Advertisement names them, beside docker, "+
			"veth, cni and others; may be repeated",
		func(text string) error { return addPrefix(&s.excludedLinks, text) },
	)
	f.BoolVar(
		&s.node.Relay,
		"relay",
		true,
		"send packets of older TCP connections to the former owner of an address that moves here",
	)
	f.Func(
		"egress-exception",
		"`prefix` of destinations that pods of Services with holdfast.dev/egress reach from the addresses of their "+
			"nodes; may be repeated",
		func(text string) error {
			p, err := netip.ParsePrefix(text)
			s.node.EgressExceptions = append(s.node.EgressExceptions, p.Masked())
			return err
		},
	)
	f.IntVar(
		&s.announceRate,
		"announce-rate",
		500,
		"`frames` a second that announce addresses on one link, 100 to 100000, beyond a burst of 1000",
	)
	f.BoolVar(
		&s.announceByRequest,
		"announce-by-request",
		false,
		"ask the default gateways for their own addresses from each announced one: some learn from "+
			"nothing else",
	)
	f.UintVar(&s.heartbeatPort, "heartbeat-port", 7948, "UDP `port` of the speakers' heartbeats")
	f.DurationVar(
		&s.heartbeatInterval,
		"heartbeat-interval",
		25*time.Millisecond,
		"`time` between two heartbeats, 10ms to 1s; a node is suspected after "+
			"four missed heartbeats",
	)
	f.BoolVar(
		&s.realtime,
		"heartbeat-realtime",
		true,
		"give the heartbeat process real-time priority, which needs the capability SYS_NICE; without it a "+
			"node is suspected after sixteen missed heartbeats",
	)
	f.StringVar(
		&s.kubeProxyLivez,
		"kube-proxy-livez",
		"127.0.0.1:10256",
		"`address` and port of kube-proxy's /livez: after a boot the node announces "+
			"nothing until kube-proxy has served",
	)
}

// validate checks the values that the flag package does not check.
func (s *settings) validate() error {
	if s.nodeName == "" {
		return errors.New("--node-name is not given and NODE_NAME is not set")
	}
	if _, err := netip.ParseAddrPort(s.kubeProxyLivez); err != nil {
		return fmt.Errorf("--kube-proxy-livez: %w", err)
	}
	for name, port := range map[string]uint{"members-port": s.membersPort, "heartbeat-port": s.heartbeatPort} {
		if port == 0 || port > 65535 {
			return fmt.Errorf("--%s %d is not between 1 and 65535", name, port)
		}
	}
	if s.heartbeatPort == s.membersPort {
		return fmt.Errorf("--heartbeat-port and --members-port are both %d", s.membersPort)
	}
	members := daemon.Listener{Flag: "members-port", Address: fmt.Sprintf(":%d", s.membersPort)}
	if err := s.CheckListeners(members); err != nil {
		return err
	}
	if s.heartbeatInterval < minInterval || s.heartbeatInterval > maxInterval {
		return fmt.Errorf("--heartbeat-interval %v is not between %v and %v",
			s.heartbeatInterval, minInterval, maxInterval)
	}
	if s.announceRate < minRate || s.announceRate > maxRate {
		return fmt.Errorf("--announce-rate %d is not between %d and %d", s.announceRate, minRate, maxRate)
	}
	return nil
}

// addPrefix adds the beginning of names of links to a list.
func addPrefix(to *[]string, text string) error {
	if !linkPrefix.MatchString(text) {
		return errors.New("not the beginning of a link's name: 1 to 14 letters, digits, '_', '-' and '.'")
	}
	*to = append(*to, text)
	return nil
}
