package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"
)

func (s *seat) migrate() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Print what takes the place of another load balancer's configuration", Args: cobra.NoArgs}
	cmd.AddCommand(s.migrateMetalLB())
	return cmd
}

func (s *seat) migrateMetalLB() *cobra.Command {
	var files []string
	var since string
	var check bool
	cmd := &cobra.Command{
		Use: "metallb [-f FILE]", Short: "Print Holdfast's objects for MetalLB's, and on standard error what differs", Args: cobra.NoArgs,
		Long: "It reads the cluster, or files alone, and changes nothing. Addresses are compared by the functions that the daemons run.",
		Example: `  kubectl holdfast migrate metallb > holdfast.yaml
  kubectl holdfast bundle before.gz; kubectl holdfast migrate metallb --check --since before.gz`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			snapshot, foreign, err := s.readMetalLB(cmd.Context(), files)
			if err != nil {
				return err
			}
			before := snapshot
			if since != "" {
				if before, err = readBundle(since); err != nil {
					return err
				}
			}
			objects, report := snapshot.MetalLB(foreign, before.Objects.Services)
			if check {
				return s.say(cmd, report)
			}
			if err := s.printObjects(cmd.OutOrStdout(), objects); err != nil {
				return err
			}
			cmd.SetOut(cmd.ErrOrStderr()) // standard output is for kubectl apply
			return s.say(cmd, report)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files with MetalLB's objects, and Services, in place of the cluster; - is standard input")
	cmd.Flags().BoolVar(&check, "check", false, "print the report only, on standard output")
	cmd.Flags().StringVar(&since, "since", "", "compare with the addresses in this `file`, which the command bundle wrote before the move")
	return cmd
}

// metalLBGroup is the API group of MetalLB.
const metalLBGroup = "metallb.io"

// readMetalLB reads the cluster with MetalLB's objects in it, in the order in which ours are to be created; with files no cluster.
// With --from, a bundle, which has no objects of MetalLB, takes the place of the cluster.
func (s *seat) readMetalLB(ctx context.Context, files []string) (snapshot explain.Snapshot, out []explain.Foreign, err error) {
	if files != nil && s.from == "" {
		snapshot = explain.Snapshot{Now: time.Now(), Namespace: s.namespace, Options: optionsOf(nil), Unread: map[string]string{}}
	} else if snapshot, err = s.read(ctx, ""); err != nil {
		return snapshot, nil, err
	}
	if files != nil || s.from != "" {
		out, err = readFiles(&snapshot, files)
		return snapshot, out, err
	}
	config, err := s.cluster.ToRESTConfig()
	if err != nil {
		return snapshot, nil, err
	}
	r, err := newReader(config, "")
	if err != nil {
		return snapshot, nil, err
	}
	for _, resource := range []string{"v1beta1/ipaddresspools", "v1beta1/communities", "v1beta1/bfdprofiles", "v1beta2/bgppeers", "v1beta1/bgpadvertisements",
		"v1beta1/l2advertisements"} {
		var found []*explain.Foreign
		version, resource, _ := strings.Cut(resource, "/")
		if err := list(r, "/apis/"+metalLBGroup+"/"+version, resource, "", "", &found)(ctx); err != nil {
			return snapshot, nil, err
		}
		for _, f := range found {
			out = append(out, *f)
		}
		if why, failed := r.snapshot.Unread[resource]; failed {
			snapshot.Unread[resource+"."+metalLBGroup] = why
		}
	}
	return snapshot, out, nil
}

// readFiles reads MetalLB's objects and Services from files.
func readFiles(snapshot *explain.Snapshot, files []string) (out []explain.Foreign, err error) {
	if files == nil {
		return nil, nil
	}
	infos, err := resource.NewLocalBuilder().Unstructured().FilenameParam(false, &resource.FilenameOptions{Filenames: files}).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read the objects: %w", err)
	}
	for _, info := range infos {
		o, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		var f explain.Foreign
		service := new(corev1.Service)
		switch kind := o.GroupVersionKind(); {
		case kind.Group == metalLBGroup:
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &f)
			out = append(out, f)
		case kind.Group == "" && kind.Kind == "Service":
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, service)
			snapshot.Put(service)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", info.ObjectName(), info.Source, err)
		}
	}
	return out, nil
}

// printObjects prints objects for kubectl apply.
func (s *seat) printObjects(w io.Writer, objects []runtime.Object) error {
	var items []any
	for _, o := range objects {
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var item map[string]any
		if err := json.Unmarshal(body, &item); err != nil {
			return err
		}
		delete(item, "status")
		metadata, _ := item["metadata"].(map[string]any)
		maps.DeleteFunc(metadata, func(key string, _ any) bool {
			return !slices.Contains([]string{"name", "namespace", "labels", "annotations"}, key)
		})
		items = append(items, item)
	}
	return s.show(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, func(w io.Writer) error {
		for i, item := range items {
			text, err := yaml.Marshal(item)
			if err != nil {
				return err
			}
			if i > 0 {
				text = append([]byte("---\n"), text...)
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
		}
		return nil
	})
}
