"""The Trainer of Hugging Face transformers, with a small BERT: it uses the process group that is there.

fptps run -n 2 -s 1 python examples/torch/transformers_trainer.py
torchrun --nproc-per-node 2 examples/torch/transformers_trainer.py
"""

import tempfile

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

dist.init_process_group("fptps")

# Does a sentence have more words of the lower half of the vocabulary than of the upper half?
words = torch.randint(200, (1600, 9), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": each, "labels": int((each < 100).sum() > 4)} for each in words]
torch.manual_seed(1)
model = BertForSequenceClassification(
    BertConfig(vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=3,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

weights = sum(float(p.detach().double().sum()) for p in model.parameters())
print(
    f"worker {dist.get_rank()} of {dist.get_world_size()}: "
    f"mean loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}, sum of the weights {weights!r}"
)
dist.destroy_process_group()
