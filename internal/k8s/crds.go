package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// WriteCRDs writes the custom resource definitions in the files of a directory to the cluster. It creates missing ones
// and deletes none. It uses merge patches, which replace lists: by server-side apply, rules that another writer owns
// too would stay.
func (c Clients) WriteCRDs(ctx context.Context, log *slog.Logger, dir string) error {
	files, _ := filepath.Glob(filepath.Join(dir, "*.yaml")) // a bad pattern matches none
	if len(files) == 0 {
		return fmt.Errorf("no definitions in %s", dir)
	}

	for _, file := range files {
		name, body, err := readCRD(file)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if err := c.writeCRD(ctx, name, body); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}

		log.Info("wrote definition", "name", name)
	}

	return nil
}

// readCRD reads a definition from a file, and returns it as JSON.
func readCRD(file string) (name string, body []byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	body, err = yaml.ToJSON(text)
	if err != nil {
		return "", nil, err
	}

	var o metav1.PartialObjectMetadata
	err = json.Unmarshal(body, &o)
	return o.Name, body, err
}

// crdsPath is the path of all definitions.
const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// writeCRD patches a definition, or creates it.
func (c Clients) writeCRD(ctx context.Context, name string, body []byte) error {
	client := c.kube.core
	err := client.Patch(types.MergePatchType).
		AbsPath(crdsPath, name).
		Body(body).
		Do(ctx).
		Error()
	if !apierrors.IsNotFound(err) {
		return err
	}

	return client.Post().
		AbsPath(crdsPath).
		SetHeader("Content-Type", "application/json").
		Body(body).
		Do(ctx).
		Error()
}
