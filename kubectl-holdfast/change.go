package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/spf13/cobra"
	"gopkg.in/gcfg.v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/resource"
)

// readFiles reads objects of Holdfast's kinds, of MetalLB's, and Services. No server is asked.
func readFiles(files []string) (out []runtime.Object, err error) {
	infos, err := resource.NewLocalBuilder().WithScheme(scheme, scheme.PrioritizedVersionsAllGroups()...).
		FilenameParam(false, &resource.FilenameOptions{Filenames: files}).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	for _, info := range infos {
		out = append(out, info.Object)
	}
	return out, nil
}

func (s *seat) migrate() *cobra.Command {
	var files, only []string
	var since, conf string
	var check bool
	run := func(move func(context.Context, explain.Snapshot, []*corev1.Service) (explain.Move, error)) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) (err error) {
			cluster := explain.Snapshot{Now: time.Now(), Namespace: s.namespace, Options: optionsOf(nil)}
			if files == nil || s.from != "" {
				cluster, err = s.read(cmd.Context(), "")
			}
			before := cluster
			if err == nil && since != "" {
				before, err = readBundle(since)
			}
			if err != nil {
				return err
			}
			m, err := move(cmd.Context(), cluster, before.Objects.Services)
			if err == nil && !check {
				err = s.printObjects(cmd.OutOrStdout(), slices.DeleteFunc(m.Objects, func(o runtime.Object) bool {
					return only != nil && !slices.Contains(only, o.GetObjectKind().GroupVersionKind().Kind)
				}))
				cmd.SetOut(cmd.ErrOrStderr()) // standard output is for kubectl apply
			}
			if err != nil {
				return err
			}
			return s.say(cmd, m.Report)
		}
	}
	metalLB := &cobra.Command{Use: "metallb", Short: "Print Holdfast's objects for MetalLB's", Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, c explain.Snapshot, before []*corev1.Service) (m explain.Move, err error) {
			var objects []runtime.Object
			if files != nil {
				objects, err = readFiles(files)
			} else if since == "" { // after the move there may be none
				objects, err = s.listMetalLB(ctx)
			}
			return c.MetalLB(objects, before), err
		})}
	metalLB.Flags().StringSliceVarP(&files, "filename", "f", nil, "files with MetalLB's objects, in place of the cluster; - is standard input")
	openStack := &cobra.Command{Use: "openstack", Short: "Print pools and FloatingIPs for OpenStack's", Args: cobra.NoArgs,
		RunE: run(func(_ context.Context, c explain.Snapshot, before []*corev1.Service) (explain.Move, error) {
			var cloud explain.Cloud
			err := gcfg.FatalOnly(gcfg.ReadFileInto(&cloud, conf)) // it has more than is read
			return c.OpenStack(cloud, before), err
		})}
	openStack.Flags().StringVar(&conf, "cloud-conf", "", "configuration `file` of OpenStack's cloud controller manager")
	_ = openStack.MarkFlagRequired("cloud-conf")
	cmd := &cobra.Command{Use: "migrate", Short: "Print what takes the place of another load balancer's objects, and on standard error what differs"}
	cmd.PersistentFlags().BoolVar(&check, "check", false, "print the report only, on standard output")
	cmd.PersistentFlags().StringSliceVar(&only, "only", nil, "print objects of these `kinds` only")
	cmd.PersistentFlags().StringVar(&since, "since", "", "after the move: compare with the addresses in this `file`, which the command bundle wrote before")
	cmd.AddCommand(metalLB, openStack)
	return cmd
}

// listMetalLB lists MetalLB's objects, in the order in which ours are to be created.
func (s *seat) listMetalLB(ctx context.Context) (out []runtime.Object, err error) {
	r, err := s.reader()
	if err != nil {
		return nil, err
	}
	for _, path := range []string{"v1beta1/ipaddresspools", "v1beta1/communities", "v1beta1/bfdprofiles", "v1beta2/bgppeers", "v1beta1/bgpadvertisements",
		"v1beta1/l2advertisements"} {
		var found []*json.RawMessage
		version, kind, _ := strings.Cut(path, "/")
		if err := list(r, "/apis/metallb.io/"+version, kind, "", "", &found)(ctx); err != nil {
			return nil, err
		}
		for _, text := range found {
			o, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(), *text)
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	for kind, why := range r.snapshot.Unread {
		return nil, fmt.Errorf("read MetalLB's %s: %s", kind, why)
	}
	return out, nil
}

// printObjects prints objects for kubectl apply.
func (s *seat) printObjects(w io.Writer, objects []runtime.Object) error {
	items := []any{}
	for _, o := range objects {
		item, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		delete(item, "status")
		items = append(items, item)
	}
	return (&seat{output: cmp.Or(s.output, "yaml")}).show(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, nil)
}
