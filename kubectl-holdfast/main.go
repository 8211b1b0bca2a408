// Command kubectl-holdfast is the plugin "kubectl holdfast", which explains why an address answers or does not, shows
// the state of Holdfast, and compares the cluster with the cluster after a change.
//
// It reads objects of the API server and debug pages of the daemons with the rights of the user, and prints reports:
//
//	cluster or bundle ──► Snapshot ──► explanationOf, Status, Compare, MetalLB ──► Report
//
// The files that explain a Snapshot are pure (internal/house has the list). The present state is what the daemons
// wrote. The state after a change is computed by the functions that the daemons run.
//
// It must not write to the cluster. It works without Holdfast's daemons.
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

// cli holds the flags and the reader that all commands share.
type cli struct {
	cluster   *genericclioptions.ConfigFlags
	namespace string
	output    string
	// from is the file of a bundle to read in place of the cluster.
	from string
	// probe makes speakers ask on the network.
	probe bool
	// reader is nil until the cluster was read.
	*reader
}

// newRoot returns the command. It prints through a writer that keeps escape sequences from the terminal.
func newRoot(out, errs io.Writer) *cobra.Command {
	c := &cli{cluster: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:           "kubectl-holdfast",
		Short:         "See why an address answers or does not, and what a change would change",
		Long:          "The exit status is 0 if all is well, 1 if a problem was found and 2 for an error.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}

	root.SetOut(printable{out})
	root.SetErr(printable{errs})

	flags := root.PersistentFlags()
	c.cluster.AddFlags(flags)
	flags.StringVar(&c.namespace, "holdfast-namespace", "holdfast-system", "namespace that Holdfast runs in")
	flags.StringVarP(&c.output, "output", "o", "", "output format: json or yaml; text without it")
	flags.StringVar(&c.from, "from", "", "read this `file`, which the command bundle wrote, and not the cluster")

	root.AddCommand(
		c.newWhy(),
		c.newStatus(),
		c.newPlan(),
		c.newBundle(),
		c.newMigrate(),
	)

	return root
}

// read reads the cluster or the bundle, with the Services of only one namespace unless that is "".
func (c *cli) read(ctx context.Context, only string) (Snapshot, error) {
	if c.from != "" {
		return readBundle(c.from)
	}

	access, err := c.cluster.ToRESTConfig()
	if err != nil {
		return Snapshot{}, fmt.Errorf("find the API server: %w", err)
	}

	access.UserAgent = "kubectl-holdfast"
	access.QPS = -1 // the API server limits the rate
	client, err := discovery.NewDiscoveryClientForConfig(access)
	if err != nil {
		return Snapshot{}, fmt.Errorf("find the API server: %w", err)
	}

	c.reader = &reader{
		config:  access,
		client:  client.RESTClient(),
		timeout: pageTimeout,
	}

	return c.reader.read(ctx, c.namespace, only)
}

// newWhy returns the command why.
func (c *cli) newWhy() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why NAMESPACE/SERVICE | svc/SERVICE | pod NAMESPACE/NAME | address ADDRESS | pool NAME | peer NAME | " +
			"node NAME",
		Short: "Explain every decision about a Service, in the order in which a packet meets it",
		Args:  cobra.RangeArgs(1, 2),
		Example: `  kubectl holdfast why default/web
  kubectl holdfast why pod default/web-5f7c9
  kubectl holdfast why address 192.0.2.10
  kubectl holdfast why peer router-a`,
		RunE: c.reportWith(c.explain),
	}

	cmd.Flags().BoolVar(
		&c.probe,
		"probe",
		false,
		"have a speaker ask on the wire which machines answer for the addresses of a Service",
	)

	return cmd
}

// reportFunc makes reports about a snapshot.
type reportFunc func(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error)

// reportWith returns the function of a command that reads the cluster and prints the reports.
func (c *cli) reportWith(report reportFunc) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		snapshot, err := c.read(cmd.Context(), "")
		if err != nil {
			return err
		}

		reports, err := report(cmd.Context(), snapshot, args)
		if err != nil {
			return err
		}

		return c.printReports(cmd, reports...)
	}
}

// serviceKinds and podKinds are kubectl's names of the kinds Service and Pod.
var (
	serviceKinds = []string{"svc", "service", "services"}
	podKinds     = []string{"po", "pod", "pods"}
)

// key reads the name of a Service or a pod: NAMESPACE/NAME, or NAME or kubectl's svc/NAME in the namespace of kubectl's
// flags.
func (c *cli) key(args []string) (key lb.Key, err error) {
	name := args[len(args)-1]
	kind, rest, isQualified := strings.Cut(name, "/")
	if isQualified && len(args) == 1 && slices.Contains(serviceKinds, kind) {
		name = rest
	}

	if strings.Contains(name, "/") {
		return lb.ParseKey(name), nil
	}

	// The namespace is "default" without a kubeconfig.
	namespace, _, err := c.cluster.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return key, fmt.Errorf("find the namespace: %w", err)
	}

	return lb.Key{Namespace: namespace, Name: name}, nil
}

// explain reports on the arguments of the command why.
func (c *cli) explain(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	kind := args[0]
	if len(args) == 1 || slices.Contains(serviceKinds, kind) {
		return c.explainService(ctx, snapshot, args)
	}

	if slices.Contains(podKinds, kind) {
		return c.explainPod(ctx, snapshot, args)
	}

	name := args[1]
	switch kind {
	case "address":
		address, err := netip.ParseAddr(name)
		return snapshot.Address(address.Unmap()), err
	case "pool":
		return []Report{snapshot.Pool(name)}, nil
	case "peer":
		return []Report{snapshot.Peer(name)}, nil
	case "node":
		return []Report{snapshot.Node(name)}, nil
	}

	return nil, fmt.Errorf("unknown kind %q: service, pod, address, pool, peer and node are known", kind)
}

// explainService reports why a Service is served or not.
func (c *cli) explainService(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	key, err := c.key(args)
	if err != nil {
		return nil, err
	}

	snapshot, err = c.inNamespace(ctx, snapshot, key.Namespace)
	if err != nil {
		return nil, err
	}

	if c.from != "" && c.probe {
		return nil, errors.New("--probe asks a cluster, and --from has none")
	}

	e := snapshot.explanationOf(key.Namespace, key.Name)
	if c.from == "" && e.object != nil {
		c.readSpeakers(ctx, e, c.probe)
	}

	return []Report{e.explain()}, nil
}

// explainPod reports from which addresses a pod sends.
func (c *cli) explainPod(ctx context.Context, snapshot Snapshot, args []string) ([]Report, error) {
	key, err := c.key(args)
	if err != nil {
		return nil, err
	}

	snapshot, err = c.inNamespace(ctx, snapshot, key.Namespace)
	if err != nil {
		return nil, err
	}

	if c.from == "" {
		err = c.readEgressPods(ctx, &snapshot, key.Namespace, key.Name)
		return []Report{snapshot.Pod(key)}, err
	}

	unread := map[string]string{EgressPods: "a bundle has pods of namespaces with " + config.AnnotationEgress + " only"}
	maps.Copy(unread, snapshot.Unread)
	snapshot.Unread = unread
	return []Report{snapshot.Pod(key)}, nil
}

// inNamespace returns the snapshot, or another one of this namespace alone: a tenant may not read the Services of
// others.
func (c *cli) inNamespace(ctx context.Context, snapshot Snapshot, namespace string) (Snapshot, error) {
	_, isRefused := snapshot.Unread[Services]
	if !isRefused || c.from != "" {
		return snapshot, nil
	}

	snapshot, err := c.read(ctx, namespace)
	if err == nil {
		snapshot.Unread["other namespaces"] = "forbidden"
	}

	return snapshot, err
}

// newStatus returns the command status.
func (c *cli) newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the whole of Holdfast on one screen, problems first",
		Args:  cobra.NoArgs,
		RunE: c.reportWith(func(_ context.Context, snapshot Snapshot, _ []string) ([]Report, error) {
			return []Report{snapshot.Status()}, nil
		}),
	}
}

// newPlan returns the command plan.
func (c *cli) newPlan() *cobra.Command {
	var files []string
	var drained string
	cmd := &cobra.Command{
		Use:   "plan -f FILE | --drain NODE",
		Short: "Show what would change, by the functions that the daemons run",
		Args:  cobra.NoArgs,
		Example: `  kubectl holdfast plan -f pool.yaml
  kubectl holdfast plan --drain node-3`,
		RunE: c.reportWith(func(_ context.Context, before Snapshot, _ []string) ([]Report, error) {
			after, err := c.change(before, files, drained)
			if err != nil {
				return nil, err
			}
			return []Report{Compare(before, after, drained)}, nil
		}),
	}

	flags := cmd.Flags()
	flags.StringSliceVarP(
		&files,
		"filename",
		"f",
		nil,
		"files with the objects as they would be; - is standard input",
	)

	flags.StringVar(&drained, "drain", "", "`node` that would have no pods and no speaker")
	cmd.MarkFlagsMutuallyExclusive("filename", "drain")
	cmd.MarkFlagsOneRequired("filename", "drain")
	return cmd
}

// change returns the snapshot with the objects of the files. It checks that the drained node exists.
func (c *cli) change(before Snapshot, files []string, drained string) (after Snapshot, err error) {
	for resource, why := range before.Unread {
		return after, fmt.Errorf("a plan needs all objects, and %s cannot be read: %s", resource, why)
	}

	if files == nil && Find(before.Objects.Nodes, "", drained) == nil {
		return after, fmt.Errorf("there is no node %q to drain", drained)
	}

	objects, err := c.fromFiles(files, "", v1beta1.GroupVersion.Group)
	if err != nil {
		return after, err
	}

	after = before
	for _, o := range objects {
		isKnown := after.Put(o)
		if !isKnown {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			return after, fmt.Errorf("a plan knows no objects of kind %s", kind)
		}
	}

	return after, nil
}

// printReports prints reports in the format of the flag. It returns errProblem if a report has a problem.
func (c *cli) printReports(cmd *cobra.Command, reports ...Report) error {
	var err error
	if c.output == "" {
		err = printReports(cmd.OutOrStdout(), reports)
	} else {
		err = encode(cmd.OutOrStdout(), c.output, reports)
	}

	if err != nil {
		return err
	}

	hasProblem := func(r Report) bool { return !r.Healthy() }
	if slices.ContainsFunc(reports, hasProblem) {
		return errProblem
	}

	return nil
}

// encode writes a value as JSON or YAML.
func encode(w io.Writer, format string, v any) error {
	var out []byte
	var err error
	switch format {
	case "yaml":
		out, err = yaml.Marshal(v)
	case "json":
		out, err = json.MarshalIndent(v, "", "  ")
		out = append(out, '\n')
	default:
		err = fmt.Errorf("unknown output format %q: json and yaml are known", format)
	}

	if err != nil {
		return err
	}

	_, err = w.Write(out)
	return err
}
