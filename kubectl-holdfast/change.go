package main

import (
	"fmt"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
)

// with returns the cluster as it would be with the objects of these files in it.
func with(s explain.Snapshot, files []string) (explain.Snapshot, error) {
	objects, err := readFiles(files)
	for _, o := range objects {
		if !s.Put(o) {
			return s, fmt.Errorf("%T: a plan knows Holdfast's kinds and Services only", o)
		}
	}
	return s, err
}

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
