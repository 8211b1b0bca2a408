package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sys/unix"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// daemon is one of ours: the processes of its pod.
type daemon struct {
	main int   // the process that the pod starts
	all  []int // with the processes that this one starts
}

// findDaemon finds the processes of a pod on a node by the names of their programs, the first of which starts the
// others.
func findDaemon(b *testbed.Bed, node string, programs ...string) (d daemon, err error) {
	pids, err := inLab(b).Processes(node)
	if err != nil {
		return d, err
	}

	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		i := slices.Index(programs, strings.TrimSpace(string(name)))
		if err == nil && i >= 0 {
			d.all = append(d.all, pid)
			if i == 0 {
				d.main = pid
			}
		}
	}

	if d.main == 0 {
		return d, fmt.Errorf("no process %s on %s", programs[0], node)
	}

	return d, nil
}

// findSpeaker finds the processes of the speaker on a node.
func findSpeaker(b *testbed.Bed, node string) (daemon, error) {
	return findDaemon(b, node, "speaker", "heartbeat", "bgp")
}

// cpuOf is the time of all threads of processes, to the nanosecond: clock_getcpuclockid(3) is this arithmetic.
func cpuOf(pids ...int) (total time.Duration, err error) {
	const processWide = 2 // CPUCLOCK_SCHED
	for _, pid := range pids {
		var t unix.Timespec
		err := unix.ClockGettime(int32(^pid<<3|processWide), &t)
		if err != nil {
			return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
		}

		total += time.Duration(t.Nano())
	}

	return total, nil
}

// held is the memory of processes: rss counts what they share once for each, pss divides it among all that share it.
type held struct{ rss, pss float64 }

// memoryOf returns the memory of processes.
func memoryOf(pids ...int) (m held, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return m, err
		}

		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 3 {
				kib, _ := strconv.ParseFloat(fields[1], 64)
				switch fields[0] {
				case "Rss:":
					m.rss += kib / 1024
				case "Pss:":
					m.pss += kib / 1024
				}
			}
		}
	}

	return m, nil
}

// requestKinds are our daemons, whose requests a FlowSchema of each counts.
var requestKinds = []string{testbed.Speaker, testbed.Controller}

// countRequests makes the API server count the reads and writes of our daemons apart from all others, and apart from
// watches. They stay in the priority level that they have without it.
func countRequests(ctx context.Context, b *testbed.Bed) error {
	for _, account := range requestKinds {
		_, err := b.Kube.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: account},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
				MatchingPrecedence:         1000,
				DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{
					Type: flowcontrolv1.FlowDistinguisherMethodByUserType,
				},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindServiceAccount,
						ServiceAccount: &flowcontrolv1.ServiceAccountSubject{
							Namespace: testbed.Namespace,
							Name:      account,
						}}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
						Verbs:        []string{"get", "list", "create", "update", "patch", "delete"},
						APIGroups:    []string{"*"},
						Resources:    []string{"*"},
						ClusterScope: true,
						Namespaces:   []string{"*"},
					}},
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("count requests: %w", err)
		}
	}

	return nil
}

// requests returns how many reads and writes each of our daemons has made.
func requests(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	text, err := b.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read metrics of the API server: %w", err)
	}

	out := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "apiserver_flowcontrol_dispatched_requests_total{") {
			continue
		}

		for _, account := range requestKinds {
			if strings.Contains(lines.Text(), `flow_schema="`+account+`"`) {
				n, err := strconv.ParseFloat(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:], 64)
				if err != nil {
					return nil, err
				}

				out[account] += n
			}
		}
	}

	return out, lines.Err()
}

// profile saves what a daemon's debug page says in a file of the directory that -profiles names, if it does.
func profile(ctx context.Context, d daemon, file, page string) error {
	if *scaleProfiles == "" {
		return nil
	}

	if err := os.MkdirAll(*scaleProfiles, 0o755); err != nil {
		return err
	}

	net := fmt.Sprintf("--net=/proc/%d/ns/net", d.main)
	cmd := exec.CommandContext(
		ctx,
		"nsenter",
		net,
		"curl",
		"-sf",
		"-o",
		filepath.Join(*scaleProfiles, file),
		"http://127.0.0.1:9219/debug/pprof/"+page,
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("read profile %s: %w", page, errors.Join(err, errors.New(string(out))))
	}

	return nil
}
