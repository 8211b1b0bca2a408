// Command kubectl-holdfast is the plugin "kubectl holdfast": why an address answers or does not, how Holdfast is, and
// what a change would change. It only reads, with the rights of the user, and works without Holdfast's daemons. What
// explains a snapshot of the cluster is pure (internal/house has the list): what would be is computed by the very
// functions that the daemons run; what is comes from what the daemons wrote.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"
)

// The exit statuses.
const (
	statusHealthy = iota
	statusProblem
	statusError
)

// errProblem ends a command that found a problem.
var errProblem = errors.New("a problem was found")

// version is stamped by the linker: see the command release.
var version = "unreleased"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, newRoot(os.Stdout, os.Stderr))
	stop()
	os.Exit(status)
}

// run runs a command, prints its error, and returns its exit status.
func run(ctx context.Context, root *cobra.Command) int {
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return statusHealthy
	case errors.Is(err, errProblem):
		return statusProblem
	default:
		fmt.Fprintln(root.ErrOrStderr(), "error:", lb.Line(err.Error(), maxText))
		return statusError
	}
}

// seat is what all commands share.
type seat struct {
	cluster   *genericclioptions.ConfigFlags
	namespace string
	output    string
	// from is a bundle to read in place of the cluster.
	from string
	// probe has speakers ask on the wire.
	probe bool
	// reader of the cluster, once it was read.
	*reader
}

// newRoot returns the command. All that it prints goes through a writer that keeps escape sequences from the terminal.
func newRoot(out, errs io.Writer) *cobra.Command {
	s := &seat{cluster: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use: "kubectl-holdfast", Short: "See why an address answers or does not, and what a change would change",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		SilenceUsage: true, SilenceErrors: true, Version: version,
		Long: "The exit status is 0 if all is well, 1 if a problem was found and 2 for an error.",
	}
	root.SetOut(printable{out})
	root.SetErr(printable{errs})
	s.cluster.AddFlags(root.PersistentFlags())
	root.PersistentFlags().
		StringVar(&s.namespace, "holdfast-namespace", "holdfast-system", "namespace that Holdfast runs in")
	root.PersistentFlags().StringVarP(&s.output, "output", "o", "", "output format: json or yaml; text without it")
	root.PersistentFlags().
		StringVar(&s.from, "from", "", "read this `file`, which the command bundle wrote, and not the cluster")
	root.AddCommand(s.why(), s.status(), s.plan(), s.bundle(), s.migrate())
	return root
}

// read reads the cluster; only one namespace of Services unless it is "".
func (s *seat) read(ctx context.Context, only string) (Snapshot, error) {
	if s.from != "" {
		return readBundle(s.from)
	}
	config, err := s.cluster.ToRESTConfig()
	if err != nil {
		return Snapshot{}, fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent, config.QPS = "kubectl-holdfast", -1 // the API server paces us
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return Snapshot{}, fmt.Errorf("find the API server: %w", err)
	}
	s.reader = &reader{config, client.RESTClient(), debugTime}
	return s.reader.read(ctx, s.namespace, only)
}

func (s *seat) why() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why NAMESPACE/SERVICE | svc/SERVICE | pod NAMESPACE/NAME | address ADDRESS | pool NAME | peer NAME | " +
			"node NAME",
		Short: "Explain every decision about a Service, in the order in which a packet meets it",
		Args:  cobra.RangeArgs(1, 2),
		Example: `  kubectl holdfast why default/web
  kubectl holdfast why pod default/web-5f7c9
  kubectl holdfast why address 192.0.2.10
  kubectl holdfast why peer router-a`,
		RunE: s.answer(s.explain),
	}
	cmd.Flags().BoolVar(&s.probe, "probe", false,
		"have a speaker ask on the wire which machines answer for the addresses of a Service")
	return cmd
}

// answer returns a command that reads the cluster and prints what these make of it.
func (s *seat) answer(
	reports func(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error),
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		snapshot, err := s.read(cmd.Context(), "")
		if err != nil {
			return err
		}
		out, err := reports(cmd.Context(), snapshot, args)
		if err != nil {
			return err
		}
		return s.say(cmd, out...)
	}
}

// serviceKinds and podKinds are the names that kubectl has for the kinds Service and Pod.
var serviceKinds, podKinds = []string{"svc", "service", "services"}, []string{"po", "pod", "pods"}

// key reads the name of a Service or a pod: NAMESPACE/NAME, or NAME or kubectl's svc/NAME in the namespace of kubectl's
// flags.
func (s *seat) key(args []string) (key lb.Key, err error) {
	name := args[len(args)-1]
	if kind, rest, qualified := strings.Cut(name, "/"); qualified &&
		len(args) == 1 &&
		slices.Contains(serviceKinds, kind) {
		name = rest
	}
	if strings.Contains(name, "/") {
		return lb.ParseKey(name), nil
	}
	namespace, _, err := s.cluster.ToRawKubeConfigLoader().Namespace() // "default" without a kubeconfig
	if err != nil {
		return key, fmt.Errorf("find the namespace: %w", err)
	}
	return lb.Key{Namespace: namespace, Name: name}, nil
}

// explain answers the arguments of why.
func (s *seat) explain(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	if len(args) == 1 || slices.Contains(serviceKinds, args[0]) {
		return s.explainService(ctx, snapshot, args)
	}
	if slices.Contains(podKinds, args[0]) {
		return s.explainPod(ctx, snapshot, args)
	}
	name := args[1]
	if args[0] == "address" {
		address, err := netip.ParseAddr(name)
		return snapshot.Address(address.Unmap()), err
	}
	answers := map[string]func(string) Report{"pool": snapshot.Pool, "peer": snapshot.Peer, "node": snapshot.Node}
	answer, known := answers[args[0]]
	if !known {
		return nil, fmt.Errorf("unknown kind %q: service, pod, address, pool, peer and node are known", args[0])
	}
	return []Report{answer(name)}, nil
}

// explainService answers why a Service is served or not.
func (s *seat) explainService(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	key, err := s.key(args)
	if err != nil {
		return nil, err
	}
	snapshot, err = s.inNamespace(ctx, snapshot, key.Namespace)
	if err != nil {
		return nil, err
	}

	w := snapshot.about(key.Namespace, key.Name)
	if s.from != "" && s.probe {
		return nil, errors.New("--probe asks a cluster, and --from has none")
	}
	if s.from == "" && w.object != nil {
		s.ask(ctx, w, s.probe)
	}
	return []Report{w.explain()}, nil
}

// explainPod answers from which addresses a pod sends.
func (s *seat) explainPod(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	key, err := s.key(args)
	if err != nil {
		return nil, err
	}
	snapshot, err = s.inNamespace(ctx, snapshot, key.Namespace)
	if err != nil {
		return nil, err
	}

	if s.from == "" {
		err = s.egressPods(ctx, &snapshot, key.Namespace, key.Name)
	} else {
		unread := map[string]string{EgressPods: "a bundle has pods of namespaces with " + config.AnnotationEgress + " only"}
		maps.Copy(unread, snapshot.Unread)
		snapshot.Unread = unread
	}
	return []Report{snapshot.Pod(key)}, err
}

// inNamespace returns the snapshot, or another one of this namespace alone: a tenant may not read the Services of
// others.
func (s *seat) inNamespace(ctx context.Context, snapshot Snapshot, namespace string) (Snapshot, error) {
	_, isRefused := snapshot.Unread[Services]
	if !isRefused || s.from != "" {
		return snapshot, nil
	}

	snapshot, err := s.read(ctx, namespace)
	if err == nil {
		snapshot.Unread["other namespaces"] = "forbidden"
	}
	return snapshot, err
}

func (s *seat) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the whole of Holdfast on one screen, problems first", Args: cobra.NoArgs,
		RunE: s.answer(func(_ context.Context, snapshot Snapshot, _ []string) ([]Report, error) {
			return []Report{snapshot.Status()}, nil
		}),
	}
}

func (s *seat) plan() *cobra.Command {
	var files []string
	var drained string
	cmd := &cobra.Command{
		Use:   "plan -f FILE | --drain NODE",
		Short: "Show what would change, by the functions that the daemons run",
		Args:  cobra.NoArgs,
		Example: `  kubectl holdfast plan -f pool.yaml
  kubectl holdfast plan --drain node-3`,
		RunE: s.answer(func(_ context.Context, before Snapshot, _ []string) ([]Report, error) {
			for resource, why := range before.Unread {
				return nil, fmt.Errorf("a plan needs all objects, and %s cannot be read: %s", resource, why)
			}
			after := before
			if files == nil && Find(before.Objects.Nodes, "", drained) == nil {
				return nil, fmt.Errorf("there is no node %q to drain", drained)
			}
			objects, err := s.fromFiles(files, "", v1beta1.GroupVersion.Group)
			if err != nil {
				return nil, err
			}
			for _, o := range objects {
				if !after.Put(o) {
					return nil, fmt.Errorf(
						"a plan knows no objects of kind %s",
						o.GetObjectKind().GroupVersionKind().Kind,
					)
				}
			}
			return []Report{Compare(before, after, drained)}, nil
		}),
	}
	cmd.Flags().
		StringSliceVarP(&files, "filename", "f", nil, "files with the objects as they would be; - is standard input")
	cmd.Flags().StringVar(&drained, "drain", "", "`node` that would have no pods and no speaker")
	cmd.MarkFlagsMutuallyExclusive("filename", "drain")
	cmd.MarkFlagsOneRequired("filename", "drain")
	return cmd
}

// say prints reports, and returns errProblem if one has a problem.
func (s *seat) say(cmd *cobra.Command, reports ...Report) (err error) {
	if s.output == "" {
		err = printReports(cmd.OutOrStdout(), reports)
	} else {
		err = encode(cmd.OutOrStdout(), s.output, reports)
	}
	if err == nil && slices.ContainsFunc(reports, func(r Report) bool { return !r.Healthy() }) {
		err = errProblem
	}
	return err
}

func encode(w io.Writer, format string, v any) error {
	out, err := yaml.Marshal(v)
	switch format {
	case "yaml":
	case "json":
		out, err = json.MarshalIndent(v, "", "  ")
		out = append(out, '\n')
	default:
		err = fmt.Errorf("unknown output format %q: json and yaml are known", format)
	}
	if err == nil {
		_, err = w.Write(out)
	}
	return err
}
