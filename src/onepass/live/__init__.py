"""The learner you keep: fed as data arrive, asked at any time, corrected, saved, exported.

    samples     whatever people have (arrays, tensors, pictures, paths, features) as one tensor
    labels      names of classes and their numbers
    journal     which samples were learned, by a digest of 16 bytes each, and as what
    prequential predictions made before learning: recent accuracy, confusion, the temperature of probabilities
    drift       whether recent accuracy left its band
    model       Model: a learner and all of these, one call at a time; `snapshot()` is what threads ask meanwhile
    corrections forget and relabel
    state       the file of a model, and its older copies
    autosave    when that is written
    claim       one process learns into a file at a time
    program     what predicts, as a graph: the small file for prediction, ONNX, torch.export
    describe    what a model knows and keeps, as plain values
    folder      a folder of pictures as a stream
    serving     a model behind HTTP, and its page
    classifier  StreamClassifier: scikit-learn's and river's names for a Model

A sample is known by its id: one that was given, or a hash of the pixels as they are learned. What is known is not
learned again, so a stream may be repeated after a crash. The file of a model holds the learner and the journal, and
appears in one rename: both are of the same moment.
"""
